use redis::IntoConnectionInfo;

use super::*;

/// A certificate and its key, in PEM.
fn identity() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn prepared(url: &str, tls: Option<&Tls>) -> Result<ConnectionInfo, ConfigError> {
    prepare(url.into_connection_info().expect("an address"), tls)
}

fn problem(tls: &Tls) -> String {
    let error = prepared("rediss://localhost/", Some(tls)).expect_err("it can't be used");
    error.to_string()
}

#[test]
fn what_can_not_be_used_is_told_by_the_setting_that_brought_it() {
    let ((certificate, key), (another, _)) = (identity(), identity());
    let broken = certificate.replace("MII", "M!!");
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (root, part) in [
        ("", "no certificate in PEM"),
        (key.as_str(), "no certificate in PEM"),
        (broken.as_str(), "can't be read as PEM"),
        (empty, "no X.509 certificate"),
    ] {
        let told = problem(&Tls::new().root_certificate(root));
        assert!(told.starts_with("root_certificate: "), "{told}");
        assert!(told.contains(part), "{told}");
    }
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    for (certificate, key, part) in [
        ("", key.as_str(), "no certificate in PEM"),
        (&broken, &key, "can't be read as PEM"),
        (&certificate, "", "no private key in PEM"),
        (&certificate, &certificate, "no private key in PEM"),
        (&certificate, &encrypted, "not encrypted"),
        (&another, &key, "not that of the certificate"),
        (
            &certificate,
            &key.replace("MI", "MA"),
            "of no kind that can be used",
        ),
    ] {
        let told = problem(&Tls::new().client_certificate(certificate, key));
        assert!(told.starts_with("client_certificate: "), "{told}");
        assert!(told.contains(part), "{told}");
        assert!(!told.contains("BEGIN"), "{told}");
    }
    let tls = Tls::new().root_certificate(&certificate);
    let tls = tls.client_certificate(&certificate, &key);
    prepared("rediss://localhost/", Some(&tls)).expect("all of it is right");
}

/// Before the client asks for it, which panics where there is none and two could be meant.
#[test]
fn the_process_has_cryptography_as_soon_as_an_address_needs_it() {
    prepared("rediss://localhost/", None).expect("an address");
    assert!(CryptoProvider::get_default().is_some());
}

#[test]
fn an_address_that_trusts_anybody_is_refused() {
    let error = prepared("rediss://localhost/#insecure", None).expect_err("it is not safe");
    assert_eq!(error.field(), "url");
    assert!(
        error.to_string().contains("Tls::root_certificate"),
        "{error}"
    );
}

#[test]
fn an_address_without_tls_stays_as_it_is() {
    let info = prepared("redis://localhost/", None).expect("nothing to do");
    assert!(matches!(info.addr(), ConnectionAddr::Tcp(..)));
}

#[test]
fn certificates_without_an_address_for_them_are_refused() {
    let error = crate::Portcullis::builder().tls(Tls::new()).build();
    let error = error.expect_err("the default address is not of TLS");
    assert_eq!(error.field(), "tls");
}

#[test]
fn what_is_printed_names_no_certificate_and_no_key() {
    let (certificate, key) = identity();
    let tls = Tls::new().root_certificate(&certificate);
    let tls = tls.client_certificate(certificate, key);
    let told = format!("{:?}", crate::Portcullis::builder().tls(tls.clone()));
    assert!(told.contains("Tls"), "{told}");
    assert_eq!(
        format!("{tls:?}"),
        "Tls { has_root_certificate: true, has_client_certificate: true }"
    );
}
