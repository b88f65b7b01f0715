//! The scripts that run on the server, for administrators who load them themselves.
//!
//! A handle loads them when it connects, for which its user needs `+eval` and `+script|load`. Where
//! that is more than a service should have, load them as another user, and build handles with
//! [`preloaded_scripts`](crate::Builder::preloaded_scripts). Then the service's user needs `+evalsha`
//! alone, and can run no code but this.
//!
//! A server keeps loaded scripts until it restarts, and gives them to no replica: load them on every
//! server that may be the master, at each of its starts. Each release has scripts of its own; load
//! those of the next beside them before it is deployed. `examples/load_scripts.rs` does so.
//!
//! # Examples
//!
//! ```
//! for script in portcullis::scripts::all() {
//!     println!("{} {}", script.digest(), script.name());
//! }
//! ```

use std::fmt;

use crate::backend::quorum;
use crate::backend::server::Script;

/// All that a handle may run, on a server or on a node of a cluster.
pub fn all() -> impl Iterator<Item = ServerScript> {
    Script::each().map(ServerScript)
}

/// All that a handle on a [quorum](crate::quorum) of servers may run on each.
pub fn quorum() -> impl Iterator<Item = ServerScript> {
    quorum::scripts().map(ServerScript)
}

/// One script.
#[derive(Clone, Copy)]
pub struct ServerScript(&'static Script);

impl ServerScript {
    /// What it is called in traces and in what [`check`](crate::Portcullis::check) finds:
    /// `mutex/acquire`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        &self.0.name
    }

    /// What `SCRIPT LOAD` takes.
    #[must_use]
    pub fn text(&self) -> &'static str {
        &self.0.code
    }

    /// What `SCRIPT LOAD` answers: the SHA-1 of the text, in hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> &'static str {
        &self.0.sha
    }
}

impl fmt::Debug for ServerScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerScript").field(&self.name()).finish()
    }
}
