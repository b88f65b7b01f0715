//! Servers that listen in more ways than one.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use portcullis::{Builder, Portcullis};

use crate::certificates::{Authority, Identity};
use crate::support::{FREE_PORT, Server};

/// What this server is called in its certificates.
pub(crate) const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// A folder of one test's own.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("portcullis-way-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        Self(folder)
    }

    /// The path of a file in it with this text.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path().join(name);
        fs::write(&path, text).expect("the folder can be written");
        path.to_str().expect("a plain name").to_owned()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It lies under the temporary one.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server that speaks TLS on a port of its own, beside the plain one.
pub(crate) struct TlsServer {
    server: Server,
    pub(crate) port: u16,
    _folder: Folder,
}

impl TlsServer {
    /// One that shows `identity`, and asks no client for a certificate.
    pub(crate) fn showing(identity: &Identity) -> Self {
        Self::start(identity, &Authority::new(), &["--tls-auth-clients", "no"])
    }

    /// One that lets in whoever `clients` has issued a certificate to.
    pub(crate) fn asking(identity: &Identity, clients: &Authority, more: &[&str]) -> Self {
        let options = [&["--tls-auth-clients", "yes"], more].concat();
        Self::start(identity, clients, &options)
    }

    fn start(identity: &Identity, clients: &Authority, more: &[&str]) -> Self {
        let folder = Folder::new();
        let certificate = folder.file("server.crt", &identity.certificate);
        let key = folder.file("server.key", &identity.key);
        let authority = folder.file("ca.crt", &clients.certificate);
        let tls = [
            "--tls-port",
            FREE_PORT,
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &authority,
        ];
        let server = Server::start_with(&[&tls[..], more].concat());
        let port = server.option("--tls-port").parse().expect("a port");
        Self {
            server,
            port,
            _folder: folder,
        }
    }

    pub(crate) fn tls_url(&self) -> String {
        format!("rediss://127.0.0.1:{}/", self.port)
    }
}

impl Deref for TlsServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Generous: a test machine may be busy, and what a time-out does is shown elsewhere.
pub(crate) fn builder(url: &str) -> Builder {
    Portcullis::builder()
        .url(url)
        .prefix("way")
        .command_timeout(Duration::from_secs(5))
        .connect_timeout(Duration::from_secs(5))
}

/// For ways that are barred: all of a time-out is waited for.
pub(crate) fn impatient(url: &str) -> Builder {
    builder(url)
        .connections(1)
        .command_timeout(Duration::from_secs(2))
        .connect_timeout(Duration::from_secs(1))
}
