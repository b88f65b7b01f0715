//! Gates over a Unix socket.

use crate::place::{Folder, builder};
use crate::sharing::share;
use crate::support::Server;

#[tokio::test]
async fn gates_are_shared_over_a_unix_socket_with_user_password_and_database() {
    let folder = Folder::new();
    let socket = folder.path().join("it's a socket");
    let socket = socket.to_str().expect("a plain name");
    let server = Server::start_with(&["--unixsocket", socket]);
    let user = [
        "ACL",
        "SETUSER",
        "ünit:one",
        "on",
        ">p&ss=/?#%:@ 1",
        "~*",
        "&*",
        "+@all",
    ];
    server.command(&user).await;
    let path = socket.replace(' ', "%20");
    let credentials = "user=%C3%BCnit%3Aone&pass=p%26ss%3D%2F%3F%23%25%3A%40%201";
    let by_socket = builder(&format!("unix://{path}?db=2&{credentials}"));
    let port = server.port();
    let by_port =
        format!("redis://%C3%BCnit%3Aone:p%26ss%3D%2F%3F%23%25%3A%40%201@127.0.0.1:{port}/2");
    let (a, b) = (
        by_socket.build().expect("ok"),
        builder(&by_port).build().expect("ok"),
    );
    share(&server.url(), &a, &b).await;
}

/// Two that both come by a socket, and a password that is everybody's.
#[tokio::test]
async fn gates_are_shared_over_a_unix_socket_with_a_password_for_all() {
    let folder = Folder::new();
    let socket = folder.path().join("redis.sock");
    let socket = socket.to_str().expect("a plain name");
    let server = Server::start_with(&["--unixsocket", socket]);
    let everybody = ["ACL", "SETUSER", "default", "resetpass", ">s3cret"];
    server.command(&everybody).await;
    let url = format!("redis+unix://{socket}?pass=s3cret");
    let handle = || builder(&url).build().expect("ok");
    let by_port = format!("redis://:s3cret@127.0.0.1:{}/", server.port());
    share(&by_port, &handle(), &handle()).await;
}
