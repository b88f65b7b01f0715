//! Whom to trust on a TLS connection, and what to show to the server.

use std::fmt;
use std::sync::Arc;

use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::error::ConfigError;

/// Whom to trust at `rediss://` addresses, and what to show to a server that asks for a
/// certificate.
///
/// Without any of it, a server is trusted if its certificate was issued by one of the CAs that the
/// system trusts, or of those in the file or folder that the environment names in `SSL_CERT_FILE`
/// and `SSL_CERT_DIR`. A server's certificate must be for the host in its address, whatever is set
/// here.
///
/// The server speaks TLS 1.2 or 1.3. The cryptography is the process' default for `rustls`; where
/// there is none yet, building the first handle with such an address makes it that of `ring`. A
/// process that wants another installs it before
/// (`rustls::crypto::CryptoProvider::install_default`).
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use portcullis::{Portcullis, Tls};
///
/// let tls = Tls::new()
///     .root_certificate(std::fs::read("ca.crt")?)
///     .client_certificate(std::fs::read("client.crt")?, std::fs::read("client.key")?);
/// let gates = Portcullis::builder().url("rediss://redis.internal:6380/").tls(tls).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
#[must_use = "it does nothing until a builder has it"]
pub struct Tls {
    /// All in one: PEM files can be put behind each other.
    roots: Option<Vec<u8>>,
    client: Option<Client>,
}

#[derive(Clone)]
struct Client {
    certificates: Vec<u8>,
    key: Vec<u8>,
}

impl Tls {
    /// Trusts the CAs of the system, and shows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts this CA *instead of* those of the system: one certificate or more, in PEM. Each
    /// further call adds to them. The certificate of a server that issued it to itself can be named too, if
    /// it is not marked as one of a CA.
    pub fn root_certificate(mut self, pem: impl AsRef<[u8]>) -> Self {
        let roots = self.roots.get_or_insert_default();
        roots.extend_from_slice(pem.as_ref());
        roots.push(b'\n');
        self
    }

    /// Shows a certificate to a server that asks for one (`tls-auth-clients`): the certificate,
    /// followed by those between it and the CA, and its private key, all in PEM. The key is PKCS#8,
    /// PKCS#1 or SEC1, and not encrypted.
    pub fn client_certificate(
        mut self,
        certificates: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Self {
        self.client = Some(Client {
            certificates: certificates.as_ref().to_vec(),
            key: key.as_ref().to_vec(),
        });
        self
    }

    /// Checks all that can be checked without a server.
    fn check(&self, provider: &Arc<CryptoProvider>) -> Result<(), ConfigError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.roots.iter().flat_map(|pem| certificates(pem)) {
            let certificate = certificate.ok_or_else(|| wrong_root("it can't be read as PEM"))?;
            let added = roots.add(certificate);
            added.map_err(|_| wrong_root("it holds what is no X.509 certificate"))?;
        }
        if self.roots.is_some() && roots.is_empty() {
            return Err(wrong_root("there is no certificate in PEM in it"));
        }
        let Some(client) = &self.client else {
            return Ok(());
        };
        let chain: Option<Vec<_>> = certificates(&client.certificates).collect();
        let chain = chain.ok_or_else(|| wrong_client("the certificate can't be read as PEM"))?;
        if chain.is_empty() {
            return Err(wrong_client("there is no certificate in PEM in the first"));
        }
        // What is wrong with a key is not repeated: it may quote the key.
        let key = PrivateKeyDer::from_pem_slice(&client.key).map_err(|_| {
            wrong_client(
                "there is no private key in PEM in the second; it takes PKCS#8, PKCS#1 or SEC1, \
                 not encrypted",
            )
        })?;
        let config = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()
            .map_err(|_| {
                ConfigError::new("tls", "the process' cryptography has no version of TLS")
            })?;
        let config = config.with_root_certificates(roots);
        match config.with_client_auth_cert(chain, key) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(wrong_client("the key is not that of the certificate"))
            }
            Err(_) => Err(wrong_client(
                "the certificate or its key is of no kind that can be used",
            )),
        }
    }

    fn certificates(&self) -> TlsCertificates {
        TlsCertificates {
            client_tls: self.client.as_ref().map(|client| ClientTlsConfig {
                client_cert: client.certificates.clone(),
                client_key: client.key.clone(),
            }),
            root_cert: self.roots.clone(),
        }
    }
}

/// Without certificates, which tell of names, and without the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("has_root_certificate", &self.roots.is_some())
            .field("has_client_certificate", &self.client.is_some())
            .finish()
    }
}

/// The certificates in `pem`, `None` for one that can't be read.
fn certificates(pem: &[u8]) -> impl Iterator<Item = Option<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem).map(Result::ok)
}

fn wrong_root(problem: &str) -> ConfigError {
    ConfigError::new("root_certificate", problem)
}

fn wrong_client(problem: &str) -> ConfigError {
    ConfigError::new("client_certificate", problem)
}

/// Gives an address all that a connection to it needs, and checks that; one that is not of TLS
/// stays as it is.
pub(crate) fn prepare(
    info: ConnectionInfo,
    tls: Option<&Tls>,
) -> Result<ConnectionInfo, ConfigError> {
    let ConnectionAddr::TcpTls { host, insecure, .. } = info.addr() else {
        return Ok(info);
    };
    if *insecure {
        let problem = "`#insecure` would let anybody be the server; name the certificate of its \
                       CA by `Tls::root_certificate`";
        return Err(ConfigError::new("url", problem));
    }
    if ServerName::try_from(host.as_str()).is_err() {
        let problem = "its host is no name that a certificate can be for";
        return Err(ConfigError::new("url", problem));
    }
    // The client takes the process' default, and panics where several are compiled in and none is
    // chosen. Whoever has chosen one is respected, also if it happens right now.
    if CryptoProvider::get_default().is_none() {
        let _ = ring::default_provider().install_default();
    }
    let Some(tls) = tls else { return Ok(info) };
    let own = || Arc::new(ring::default_provider());
    let provider = CryptoProvider::get_default().map_or_else(own, Arc::clone);
    tls.check(&provider)?;
    match redis::Client::build_with_tls(info, tls.certificates()) {
        Ok(client) => Ok(client.get_connection_info().clone()),
        // All that it looks at was looked at.
        Err(_) => Err(ConfigError::new("tls", "the certificates can't be used")),
    }
}

#[cfg(test)]
mod tests;
