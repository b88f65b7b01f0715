//! What makes a server show a certificate, as options of its configuration.

use crate::certificates::Identity;
use crate::place::Folder;
use crate::support::FREE_PORT;

/// Has it speak TLS at a port of its own and ask no client for a certificate. `authorities` is a file:
/// whom it trusts itself.
pub(crate) fn options(
    folder: &Folder,
    name: &str,
    shown: &Identity,
    authorities: &str,
) -> [(&'static str, String); 5] {
    let file = |kind: &str, text: &str| folder.file(&format!("{name}.{kind}"), text);
    [
        ("tls-port", FREE_PORT.to_owned()),
        ("tls-cert-file", file("crt", &shown.certificate)),
        ("tls-key-file", file("key", &shown.key)),
        ("tls-ca-cert-file", authorities.to_owned()),
        ("tls-auth-clients", "no".to_owned()),
    ]
}

/// The same as words of a command line.
pub(crate) fn words(options: [(&'static str, String); 5]) -> Vec<String> {
    let word = |(name, value)| [format!("--{name}"), value];
    options.into_iter().flat_map(word).collect()
}
