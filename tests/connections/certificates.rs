//! Certification authorities of a test's own, and what they issue.

use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};

/// A certificate and its private key, in PEM.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// An authority whose certificate is its own word.
pub(crate) struct Authority {
    pub(crate) certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// One by a name of its own.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::named(&format!("authority {number}"))
    }

    pub(crate) fn named(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// What a server under these names shows.
    pub(crate) fn server(&self, names: &[&str]) -> Identity {
        self.issue(params(names, ExtendedKeyUsagePurpose::ServerAuth))
    }

    /// The same, of one that is a client of servers of its kind as well.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) fn peer(&self, names: &[&str]) -> Identity {
        let mut params = params(names, ExtendedKeyUsagePurpose::ServerAuth);
        let as_client = ExtendedKeyUsagePurpose::ClientAuth;
        params.extended_key_usages.push(as_client);
        self.issue(params)
    }

    /// What a server shows that has expired.
    pub(crate) fn expired_server(&self, names: &[&str]) -> Identity {
        let mut params = params(names, ExtendedKeyUsagePurpose::ServerAuth);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.issue(params)
    }

    /// What a client shows.
    pub(crate) fn client(&self) -> Identity {
        self.issue(params(&[], ExtendedKeyUsagePurpose::ClientAuth))
    }

    fn issue(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer);
        Identity {
            certificate: certificate.expect("a certificate").pem(),
            key: key.serialize_pem(),
        }
    }
}

/// What a server shows that has no authority.
pub(crate) fn self_signed(names: &[&str]) -> Identity {
    let key = KeyPair::generate().expect("a key");
    let certificate = params(names, ExtendedKeyUsagePurpose::ServerAuth).self_signed(&key);
    Identity {
        certificate: certificate.expect("a certificate").pem(),
        key: key.serialize_pem(),
    }
}

fn params(names: &[&str], purpose: ExtendedKeyUsagePurpose) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let name = names.first().map_or("a client", |name| name).to_owned();
    let mut params = CertificateParams::new(names).expect("valid names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![purpose];
    params
}
