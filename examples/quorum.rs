//! A lock on a majority of independent servers, taken again and again by whoever runs this.
//!
//! Start it twice, and stop one of the servers meanwhile:
//!
//! ```sh
//! for port in 7001 7002 7003; do redis-server --port $port --daemonize yes; done
//! cargo run --example quorum -- redis://127.0.0.1:7001 redis://127.0.0.1:7002 redis://127.0.0.1:7003
//! redis-cli -p 7002 shutdown nosave
//! ```

use std::error::Error;
use std::time::Duration;

use portcullis::{LockError, Portcullis};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let mut servers: Vec<String> = std::env::args().skip(1).collect();
    if servers.is_empty() {
        servers = (7001..=7003)
            .map(|port| format!("redis://127.0.0.1:{port}/"))
            .collect();
    }
    let gates = Portcullis::quorum(servers)?;
    // After a start of all servers a gate is refused for one TTL: they may have lost leases.
    let withdraw = gates.mutex("withdraw").ttl(Duration::from_secs(5))?;
    println!("{} servers may fail", withdraw.tolerates());
    loop {
        match withdraw.lock().await {
            Ok(guard) => {
                let fence = guard.fencing_token();
                // What the lock protects; it ends when the lease is lost.
                let work = guard.while_held(tokio::time::sleep(Duration::from_secs(1)));
                let done = work.await.is_ok();
                println!("{fence}: done: {done}, held on {} servers", guard.held_on());
                guard.release().await?;
            }
            Err(LockError::Backend(error)) => {
                println!("{error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
