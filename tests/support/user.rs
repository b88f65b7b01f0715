//! A user of a server who may do what SECURITY.md recommends, or less.

use super::Server;

/// The rights that SECURITY.md recommends, for keys that begin with `shop:`.
pub(crate) fn recommended() -> Vec<&'static str> {
    let text = include_str!("../../SECURITY.md");
    let rest = text.split("resetchannels resetkeys -@all\n").nth(1);
    let template = rest.and_then(|rest| rest.split("```").next());
    template.expect("a template").split_whitespace().collect()
}

impl Server {
    /// Makes a user with these rights and no others; gives the address by which it comes.
    pub(crate) async fn url_of_user(&self, rights: &[&str]) -> String {
        let user = [
            "ACL",
            "SETUSER",
            "shop",
            "reset",
            "on",
            ">open",
            "resetchannels",
            "-@all",
        ];
        self.command(&[&user[..], rights].concat()).await;
        format!("redis://shop:open@127.0.0.1:{}/", self.port())
    }
}
