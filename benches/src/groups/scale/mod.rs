//! What grows with the number of locks and of waiters: the cost of a call, and memory.

mod idle;
mod keys;
mod process;
mod template;
mod waiters;

use super::{Group, runtime};
use crate::cost;
use crate::report::Report;
use crate::support::Server;

pub(crate) use self::process::ROLE;

pub(crate) const GROUP: Group = Group {
    name: "scale",
    about: "The cost of a call with many locks held and with many waiters, and the memory that they take.",
    run,
};

fn run(report: &mut Report) {
    runtime().block_on(async {
        // First, because its keys have to grow old while the others are measured.
        let idle = idle::Used::leave().await;
        keys::run(report).await;
        waiters::run(report).await;
        process::run(report);
        idle.judge(report).await;
    });
}

/// The bytes that a server has given out, once its tables have the size that they stay at.
pub(super) async fn used_memory(server: &Server) -> f64 {
    let mut before = f64::INFINITY;
    loop {
        let used = cost::info_number(server, "memory", "used_memory");
        // A table that grows is moved bit by bit, and is there twice until then. The rest of the
        // difference is connections that come and go.
        if (used - before).abs() < 100_000.0 {
            return used;
        }
        before = used;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
}
