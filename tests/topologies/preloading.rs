//! Scripts that an administrator loads, and a user who may run no others.

use portcullis::scripts;

use crate::support::Server;

/// As an administrator does it.
pub(crate) async fn load(node: &Server) {
    for script in scripts::all() {
        node.command(&["SCRIPT", "LOAD", script.text()]).await;
    }
}

/// Lets a user in, `bare:open`, who can run no code of its own.
pub(crate) async fn allow_bare(node: &Server) {
    let user = ["ACL", "SETUSER", "bare", "on", ">open"];
    let where_to = ["resetchannels", "~suite:*", "&suite:*"];
    let may = ["+@all", "-eval", "-script"];
    node.command(&[&user[..], &where_to, &may].concat()).await;
}
