//! Databases: what two of them share is channels, and nothing else.

use portcullis::Portcullis;

use crate::common::{LONG, give_back, queue, served, take, until_waiting};
use crate::place::builder;
use crate::sharing::share;
use crate::support::Server;

fn on(server: &Server, database: u8) -> Portcullis {
    let url = format!("{}{database}", server.url());
    builder(&url).build().expect("ok")
}

#[tokio::test]
async fn gates_are_shared_in_another_database_than_the_first() {
    let server = Server::start();
    share(&server.url(), &on(&server, 2), &on(&server, 2)).await;
}

#[tokio::test]
async fn two_databases_are_two_places_though_channels_are_one() {
    let server = Server::start();
    let (first, second) = (on(&server, 0), on(&server, 2));
    let named = |handle: &Portcullis| handle.mutex("lock").ttl(LONG).expect("ok");
    let exact = |handle: &Portcullis| handle.mutex_at("lock").ttl(LONG).expect("ok");
    for lock in [named, exact] {
        // All of one name are held, and waited for, twice.
        let (here, there) = (lock(&first), lock(&second));
        let (held_here, held_there) = (take(&here).await, take(&there).await);
        let (next_here, next_there) = (queue(&here), queue(&there));
        until_waiting(&here, 1).await;
        until_waiting(&there, 1).await;
        give_back(held_here).await;
        let guard = served(next_here).await;
        // Who waits there was told of a release at most, and waits on.
        until_waiting(&there, 1).await;
        assert!(!next_there.is_finished());
        assert!(held_there.is_held());
        give_back(held_there).await;
        give_back(served(next_there).await).await;
        assert!(guard.is_held());
        give_back(guard).await;
    }
}
