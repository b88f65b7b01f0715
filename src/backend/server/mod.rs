//! STUB
#![allow(missing_docs, dead_code, unused)]
pub(crate) mod script;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use super::*;
use crate::error::ConfigError;
use crate::key::Prefix;

#[derive(Clone)]
pub(crate) enum Origin { Server(redis::ConnectionInfo), Pool(deadpool_redis::Pool) }
impl Origin { pub(crate) fn local() -> Result<Self, ConfigError> { unreachable!() } }
impl fmt::Debug for Origin { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("Origin") } }
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings { pub(crate) connections: usize, pub(crate) command_timeout: Duration, pub(crate) connect_timeout: Duration }
#[derive(Debug)]
pub(crate) struct ServerBackend;
impl ServerBackend {
    pub(crate) fn start(origin: Origin, subscriber: Option<redis::ConnectionInfo>, prefix: &Prefix, settings: Settings) -> Result<Arc<dyn Backend>, ConfigError> { Ok(Arc::new(Self)) }
}
impl Backend for ServerBackend {
    fn acquire(&self, request: Request) -> Acquire { unreachable!() }
    fn cancel(&self, token: Token) {}
    fn release(&self, lease: &Arc<LeaseState>, answer: Option<oneshot::Sender<ReleaseAnswer>>) {}
    fn shutdown(&self, deadline: Duration, answer: oneshot::Sender<ShutdownReport>) {}
}
