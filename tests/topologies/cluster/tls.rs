//! A cluster whose nodes speak TLS, with clients and among themselves.
//!
//! Only the system's server speaks it: see scripts/test.

use std::time::Duration;

use portcullis::deadpool_redis::Runtime;
use portcullis::deadpool_redis::cluster::{Manager, Pool};
use portcullis::{BackendErrorKind, Builder, Portcullis, Tls};

use super::failover::is_replaced;
use super::migration::{homes, move_slots};
use crate::certificates::Authority;
use crate::cluster::{LIMIT, Load, lock, names, patiently};
use crate::common::{failure, give_back, promptly, within};
use crate::place::{Folder, NAMES};
use crate::shown;
use crate::support::{Cluster, FREE_PORT, Server};

struct Private {
    cluster: Cluster,
    authority: Authority,
    _folder: Folder,
}

impl Private {
    /// The nodes name each other by their address.
    async fn start(replicas: usize, names: &[&str]) -> Self {
        let (folder, authority) = (Folder::new(), Authority::new());
        let trusted = folder.file("ca.crt", &authority.certificate);
        let shown = shown::options(&folder, "node", &authority.peer(names), &trusted);
        let mut options = shown::words(shown);
        let among = ["--tls-cluster", "yes", "--tls-replication", "yes"];
        options.extend(among.map(str::to_owned));
        options.extend(["--cluster-port", FREE_PORT].map(str::to_owned));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Self {
            cluster: Cluster::start_with(3, replicas, &options).await,
            authority,
            _folder: folder,
        }
    }

    fn ports(&self) -> impl Iterator<Item = u16> {
        self.cluster.nodes.iter().take(3).map(Server::known_port)
    }

    fn tls(&self) -> Tls {
        Tls::new().root_certificate(&self.authority.certificate)
    }

    /// By some nodes' ports for TLS.
    fn builder(&self) -> Builder {
        let hosts: Vec<String> = self
            .ports()
            .map(|port| format!("localhost:{port}"))
            .collect();
        let url = format!("rediss+cluster://{}", hosts.join(","));
        Portcullis::builder().url(url).prefix("suite")
    }

    fn gates(&self) -> Portcullis {
        patiently(self.builder().tls(self.tls()))
    }
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_cluster_that_speaks_tls_is_found_and_a_failover_followed() {
    let private = Private::start(1, &NAMES).await;
    let gates = [private.gates(), private.gates()];
    let report = gates[0].check().await.expect("the cluster answers");
    assert!(report.is_ok(), "{report}");
    is_replaced(&private.cluster, &gates, Server::kill).await;
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn over_tls_too_requests_are_sent_on_while_slots_move() {
    let private = Private::start(0, &NAMES).await;
    let gates = [private.gates(), private.gates()];
    let load = Load::start(&gates, &names());
    load.until_all_are_used(3).await;
    let slots = homes(&private.cluster).await;
    move_slots(&private.cluster, &slots, 12).await;
    load.until_all_are_used(3).await;
    load.end().await;
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_pool_that_leads_to_other_ports_than_those_named_beside_it_is_told() {
    let private = Private::start(0, &NAMES).await;
    let plain = private.cluster.nodes.iter().map(Server::url).collect();
    let manager = Manager::new(plain, false).expect("valid addresses");
    let pool = Pool::builder(manager).max_size(4).runtime(Runtime::Tokio1);
    let pool = pool.build().expect("a valid size");
    let nodes = private
        .ports()
        .map(|port| format!("rediss://127.0.0.1:{port}/"));
    let builder = Portcullis::builder()
        .cluster_pool(pool, nodes)
        .tls(private.tls());
    let gates = builder.build().expect("valid");
    let error = failure(promptly("it is told", lock(&gates, "gate").try_lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Unreachable, "{error}");
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn whose_authority_is_not_trusted_is_told() {
    let private = Private::start(0, &NAMES).await;
    let stranger = Tls::new().root_certificate(&Authority::new().certificate);
    let builder = private.builder().tls(stranger);
    let builder = builder.connect_timeout(Duration::from_secs(5));
    let gates = builder.build().expect("valid");
    let asked = lock(&gates, "gate");
    let error = failure(within(LIMIT, "it is refused", asked.lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Untrusted, "{error}");
    let looked = gates.check().await.expect_err("it is refused");
    assert_eq!(looked.kind(), BackendErrorKind::Untrusted, "{looked}");
    let trusting = lock(&private.gates(), "gate");
    let guard = within(LIMIT, "who trusts it is let in", trusting.lock()).await;
    give_back(guard.expect("it is free")).await;
}

/// Nodes are connected to by the address that they tell, so their certificates have to be for that.
#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_certificate_that_is_not_for_a_nodes_told_address_is_told() {
    let private = Private::start(0, &["localhost"]).await;
    let error = failure(lock(&private.gates(), "gate").try_lock().await);
    assert_eq!(error.kind(), BackendErrorKind::Untrusted, "{error}");
    assert!(error.to_string().contains("another host"), "{error}");
}
