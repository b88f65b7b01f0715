//! Sentinels that are asked over TLS, or that can't be asked at all.

use portcullis::{BackendErrorKind, Builder, Sentinel as Service, Tls};

use crate::barred::refused;
use crate::certificates::Authority;
use crate::common::{give_back, take};
use crate::place::{Folder, NAMES, TlsServer, builder, impatient};
use crate::support::FREE_PORT;
use crate::support::sentinel::{SERVICE, Sentinel};

/// Another name for the master: by its port for TLS.
const PRIVATE: &str = "private";

/// A master and its sentinel, which both listen over TLS, too, each by an authority of its own.
struct Watched {
    nodes: Authority,
    sentinels: Authority,
    master: TlsServer,
    sentinel: Sentinel,
    _folder: Folder,
}

impl Watched {
    fn start() -> Self {
        let (nodes, sentinels) = (Authority::new(), Authority::new());
        let master = TlsServer::showing(&nodes.server(&NAMES));
        let (folder, shown) = (Folder::new(), sentinels.server(&NAMES));
        let lines = [
            format!("tls-port {FREE_PORT}"),
            format!("tls-cert-file {}", folder.file("crt", &shown.certificate)),
            format!("tls-key-file {}", folder.file("key", &shown.key)),
            format!("tls-ca-cert-file {}", folder.file("ca", &nodes.certificate)),
            "tls-auth-clients no".to_owned(),
            format!("sentinel monitor {PRIVATE} 127.0.0.1 {} 1", master.port),
        ];
        let sentinel = Sentinel::start(&master, &lines);
        Self {
            nodes,
            sentinels,
            master,
            sentinel,
            _folder: folder,
        }
    }

    fn plain(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.sentinel.port())
    }

    fn private(&self) -> String {
        format!("rediss://127.0.0.1:{}/", self.sentinel.option("tls-port"))
    }

    fn trust(&self) -> Tls {
        let tls = Tls::new().root_certificate(&self.nodes.certificate);
        tls.root_certificate(&self.sentinels.certificate)
    }

    fn url(&self) -> String {
        let port = self.sentinel.option("tls-port");
        format!("rediss+sentinel://127.0.0.1:{port}/{PRIVATE}")
    }
}

async fn works(builder: Builder) {
    let gates = builder.build().expect("a valid configuration");
    give_back(take(&gates.mutex("lock")).await).await;
}

/// Why there is no way, whose text names no address.
async fn told(builder: Builder, kind: BackendErrorKind) -> String {
    let gates = builder.build().expect("a valid configuration");
    let text = refused(&gates, &[kind]).await.to_string();
    assert!(!text.contains("127.0.0.1"), "{text}");
    text
}

#[tokio::test]
async fn sentinels_and_their_nodes_speak_tls_both_or_either() {
    let all = Watched::start();
    let builder = || builder(&all.master.url()).tls(all.trust());
    works(builder().url(all.url().as_str())).await;
    let nodes = Service::new(PRIVATE, [all.plain()]).nodes_like("rediss://localhost/");
    works(builder().url(nodes)).await;
    works(builder().url(Service::new(SERVICE, [all.private()]))).await;
}

#[tokio::test]
async fn a_sentinel_that_is_not_trusted_is_told_as_a_node_would_be() {
    let all = Watched::start();
    for (trusted, asked) in [(&all.nodes, false), (&all.sentinels, true)] {
        let tls = Tls::new().root_certificate(&trusted.certificate);
        let builder = impatient(&all.url()).tls(tls);
        let text = told(builder, BackendErrorKind::Untrusted).await;
        assert!(text.contains("Tls::root_certificate"), "{text}");
        assert_eq!(text.contains("no sentinel can be asked"), !asked, "{text}");
    }
}

#[tokio::test]
async fn what_is_no_sentinel_is_told_apart_from_one_that_is_away() {
    let all = Watched::start();
    let node = Service::new(SERVICE, [all.master.url()]);
    let builder = || impatient(&all.master.url());
    let text = told(builder().url(node), BackendErrorKind::Unsupported).await;
    assert!(text.contains("what answers is no sentinel (ERR)"), "{text}");
    // Here nobody can say so, and what it may be is told.
    let port = all.sentinel.port();
    let url = format!("rediss+sentinel://127.0.0.1:{port}/{SERVICE}");
    let silent = builder().url(url.as_str()).tls(all.trust());
    let text = told(silent, BackendErrorKind::Unreachable).await;
    assert!(text.contains("is this a port for TLS?"), "{text}");
}
