//! Sentinels and data nodes that speak TLS: both, or one of them.
//!
//! Only the system's server speaks it: see scripts/test.

use portcullis::{BackendErrorKind, Sentinel, Tls};

use super::credentials::{lock, works};
use super::*;
use crate::certificates::{Authority, Identity};
use crate::common::{failure, give_back, promptly, within};
use crate::place::{Folder, NAMES};
use crate::shown;
use crate::support::sentinel::SERVICE;
use crate::turns::{hand_over, hold_and_queue};

/// With whom gates speak TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speak {
    Both,
    Nodes,
    Sentinels,
}

/// A fleet whose nodes and sentinels have certificates of two authorities.
struct Private {
    fleet: Fleet,
    speak: Speak,
    nodes: Authority,
    sentinels: Authority,
    _folder: Folder,
}

impl Private {
    /// The nodes announce themselves by the address that is a name in their certificates.
    async fn start(speak: Speak) -> Self {
        Self::named(speak, &["127.0.0.1"]).await
    }

    async fn named(speak: Speak, nodes_names: &[&str]) -> Self {
        let folder = Folder::new();
        let (nodes, sentinels) = (Authority::new(), Authority::new());
        // They trust each other whoever issued it.
        let both = nodes.certificate.clone() + &sentinels.certificate;
        let authorities = folder.file("ca.crt", &both);
        let options =
            |name: &str, shown: &Identity| shown::options(&folder, name, shown, &authorities);
        let mut node_options = Vec::new();
        if speak != Speak::Sentinels {
            node_options = shown::words(options("node", &nodes.server(nodes_names)));
            node_options.extend(["--tls-replication", "yes"].map(str::to_owned));
        }
        let start = |more: &[&str]| {
            let own = node_options.iter().map(String::as_str);
            let all: Vec<&str> = own.chain(more.iter().copied()).collect();
            Server::start_with(&all)
        };
        // A sentinel that speaks TLS with the nodes does so with the others as well, at a port of
        // its own.
        let shown = options("sentinel", &sentinels.server(&NAMES));
        let mut lines: Vec<_> = shown
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        if speak != Speak::Sentinels {
            lines.push("tls-replication yes".to_owned());
        }
        let master = start(&Fleet::LEADS);
        let replicas = (0..2).map(|_| start(&Fleet::follows(&master))).collect();
        let fleet = Fleet::start_with(master, replicas, &lines).await;
        Self {
            fleet,
            speak,
            nodes,
            sentinels,
            _folder: folder,
        }
    }

    /// The address of both, with credentials for the nodes as they stand in front of a host, and
    /// for the sentinels as a URL's query.
    fn url(&self, nodes: &str, sentinels: &str) -> String {
        assert_eq!(self.speak, Speak::Both);
        let of = self.fleet.sentinels.iter();
        let ports: Vec<u16> = of.map(|sentinel| sentinel.tls_port()).collect();
        let url = Fleet::url_of(&ports).replace("redis+sentinel://", "rediss+sentinel://");
        format!("{}?{sentinels}", url.replace("://", &format!("://{nodes}")))
    }

    /// The same as settings, whoever speaks what.
    fn service(&self) -> Sentinel {
        let urls = self
            .fleet
            .sentinels
            .iter()
            .map(|sentinel| match self.speak {
                Speak::Nodes => format!("redis://127.0.0.1:{}/", sentinel.port()),
                Speak::Both | Speak::Sentinels => {
                    format!("rediss://localhost:{}/", sentinel.tls_port())
                }
            });
        Sentinel::new(SERVICE, urls).nodes_like(match self.speak {
            Speak::Sentinels => "redis://localhost/",
            Speak::Both | Speak::Nodes => "rediss://localhost/",
        })
    }

    /// Trusts all whom there is a reason to trust.
    fn tls(&self) -> Tls {
        let tls = Tls::new();
        match self.speak {
            Speak::Both => tls
                .root_certificate(&self.nodes.certificate)
                .root_certificate(&self.sentinels.certificate),
            Speak::Nodes => tls.root_certificate(&self.nodes.certificate),
            Speak::Sentinels => tls.root_certificate(&self.sentinels.certificate),
        }
    }

    fn gates(&self) -> Builder {
        let builder = Portcullis::builder().url(self.service()).prefix("suite");
        builder.tls(self.tls())
    }
}

/// Gates work, and go on at another master.
async fn is_followed(private: &Private, builder: impl Fn() -> Builder) {
    works(builder()).await;
    let fleet = &private.fleet;
    let handle = || builder().build().expect("a valid address");
    let (a, b) = (handle(), handle());
    let (a, b) = (mutex(&a), mutex(&b));
    let (held, waiter) = hold_and_queue(&a, &b).await;
    fleet.until_replicated().await;
    fleet.nodes[0].kill();
    let (_, switched) = until_both_listen(fleet, &fleet.nodes[0]).await;
    println!("moved {:?} after the switch", switched.elapsed());
    assert!(held.is_held());
    hand_over(held, waiter).await;
    assert_mortal(&fleet.nodes[1..]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn sentinels_and_nodes_that_speak_tls_are_found_by_a_url_and_failovers_followed() {
    let private = Private::start(Speak::Both).await;
    // And so are the same, as settings.
    works(private.gates()).await;
    is_followed(&private, || {
        builder(&private.url("", "")).tls(private.tls())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn nodes_may_be_asked_over_tls_where_sentinels_are_not() {
    let private = Private::start(Speak::Nodes).await;
    is_followed(&private, || private.gates()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn sentinels_may_be_asked_over_tls_where_nodes_are_not() {
    let private = Private::start(Speak::Sentinels).await;
    is_followed(&private, || private.gates()).await;
}

/// What a handle says that is not let in, of this kind.
async fn refused(builder: Builder, kind: BackendErrorKind) -> String {
    let gates = builder.build().expect("a valid address");
    let error = failure(promptly("it is refused", mutex(&gates).lock()).await);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.is_outage());
    let looked = gates.check().await.expect_err("it is refused");
    assert_eq!(looked.kind(), kind, "{looked}");
    let text = format!("{error} {looked} {error:?} {looked:?} {gates:?}");
    for kept in ["secret", "127.0.0.1", "localhost", "CERTIFICATE"] {
        assert!(!text.contains(kept), "{text}");
    }
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn over_tls_too_each_side_has_credentials_of_its_own() {
    let private = Private::start(Speak::Both).await;
    lock(&private.fleet, "node-secret", "their-secret");
    let gates =
        |nodes: &str, sentinels: &str| builder(&private.url(nodes, sentinels)).tls(private.tls());
    let asks = "sentinel_username=asks&sentinel_password=its-secret";
    let refuses = BackendErrorKind::Unauthenticated;
    let error = refused(gates(":their-secret@", asks), refuses).await;
    assert!(!error.contains("sentinel"), "{error}");
    let error = refused(
        gates(":node-secret@", "sentinel_password=node-secret"),
        refuses,
    )
    .await;
    assert!(
        error.contains("the sentinels refuse the credentials"),
        "{error}"
    );

    // Both are sent to the right side also after a crash of the master. Nobody but the gates knows
    // them, so it is seen by those alone.
    let right = || gates("shop:shop-secret@", asks);
    works(right()).await;
    let handle = || right().build().expect("a valid address");
    let (a, b) = (handle(), handle());
    let (a, b) = (mutex(&a), mutex(&b));
    let (held, waiter) = hold_and_queue(&a, &b).await;
    private.fleet.nodes[0].kill();
    let fence = held.fencing_token();
    // No answer may come in time; it is delivered later.
    let _ = held.release().await;
    let next = within(LIMIT, "its turn comes", waiter).await;
    let next = next.expect("no panic").expect("its turn comes");
    assert!(next.fencing_token() > fence);
    give_back(next).await;
}

/// Which side is not trusted is told.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn an_authority_that_is_not_trusted_is_told_with_the_side_that_shows_it() {
    let private = Private::start(Speak::Both).await;
    let url = private.url("shop:shop-secret@", "sentinel_password=their-secret");
    let gates = |trusted: &[&Authority]| {
        let roots = trusted.iter().map(|authority| &authority.certificate);
        let tls = roots.fold(Tls::new(), |tls, root| tls.root_certificate(root));
        builder(&url).tls(tls)
    };
    let stranger = Authority::new();
    for trusted in [&[&private.nodes][..], &[&stranger]] {
        let error = refused(gates(trusted), BackendErrorKind::Untrusted).await;
        assert!(error.contains("no sentinel can be asked"), "{error}");
        assert!(error.contains("issued by nobody"), "{error}");
    }
    // One that lives is enough to say so.
    private.fleet.sentinels[0].kill();
    private.fleet.sentinels[1].kill();
    let error = refused(gates(&[&stranger]), BackendErrorKind::Untrusted).await;
    assert!(error.contains("no sentinel can be asked"), "{error}");

    private.fleet.sentinels[0].restart();
    // Without credentials, which the sentinels would refuse.
    let trusting = Tls::new().root_certificate(&private.sentinels.certificate);
    let gates = builder(&private.url("", "")).tls(trusting);
    let error = refused(gates, BackendErrorKind::Untrusted).await;
    assert!(error.contains("the server's certificate"), "{error}");
    assert!(error.contains("issued by nobody"), "{error}");
    assert!(!error.contains("sentinel"), "{error}");
}

/// Sentinels name a node by its address, so its certificate has to be for that.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn a_nodes_certificate_that_is_not_for_its_announced_address_is_told() {
    let private = Private::named(Speak::Both, &["localhost"]).await;
    let error = refused(private.gates(), BackendErrorKind::Untrusted).await;
    assert!(
        error.contains("the server's certificate is for another host"),
        "{error}"
    );
}

/// Each side where the other kind of port is meant.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn tls_at_a_port_that_speaks_none_and_the_reverse_is_told_of_either_side() {
    let private = Private::start(Speak::Sentinels).await;
    let ports = private.fleet.sentinels.iter();
    let (plain, private_ports): (Vec<_>, Vec<_>) =
        ports.map(|it| (it.port(), it.tls_port())).unzip();
    let said = async |service: Sentinel, tls: Option<Tls>| {
        let builder = Portcullis::builder().url(service).prefix("suite");
        let builder = match tls {
            Some(tls) => builder.tls(tls),
            None => builder,
        };
        let gates = builder.build().expect("a valid address");
        let error = failure(promptly("it is told", mutex(&gates).lock()).await);
        println!("{:?}: {error}", error.kind());
        error.to_string()
    };
    let of = |scheme: &str, ports: &[u16], nodes: &str| {
        let urls = ports
            .iter()
            .map(|port| format!("{scheme}://127.0.0.1:{port}/"));
        Sentinel::new(SERVICE, urls).nodes_like(nodes)
    };
    let error = said(of("rediss", &plain, "redis://x/"), Some(private.tls())).await;
    assert!(
        error.contains("sentinel") && error.contains("TLS"),
        "{error}"
    );
    let error = said(of("redis", &private_ports, "redis://x/"), None).await;
    assert!(
        error.contains("sentinel") && error.contains("port for TLS"),
        "{error}"
    );
    let error = said(
        of("rediss", &private_ports, "rediss://x/"),
        Some(private.tls()),
    )
    .await;
    assert!(
        !error.contains("sentinel") && error.contains("TLS"),
        "{error}"
    );
}
