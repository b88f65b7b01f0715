//! A look at a cluster is one at each of its masters.

use portcullis::check::Severity;

use crate::cluster::{is_sharded, patient};
use crate::support::Cluster;

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_look_tries_scripts_and_pushes_on_each_master() {
    let cluster = Cluster::start(3, 0).await;
    let gates = patient(&cluster);
    let mut before = Vec::new();
    for node in &cluster.nodes {
        before.push(node.script_calls().await);
    }
    let report = gates.check().await.expect("the cluster answers");
    assert!(report.is_ok(), "{report}");
    // That nothing is persisted is all there is to say.
    let warned = report.findings().iter().map(ToString::to_string);
    let warned: Vec<String> = warned.filter(|text| !text.contains("restart")).collect();
    assert!(warned.is_empty(), "{report}");
    assert_eq!(report.servers().len(), 3);
    assert!(
        report
            .servers()
            .iter()
            .all(|server| server.is_cluster == Some(true))
    );
    for (node, before) in cluster.nodes.iter().zip(before) {
        assert!(node.script_calls().await > before + 10, "each is looked at");
    }
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn what_one_masters_user_lacks_is_found_and_who_has_all_that_is_documented_lacks_nothing() {
    let cluster = Cluster::start(3, 0).await;
    let sharded = is_sharded(&cluster).await;
    let security = include_str!("../../../SECURITY.md");
    let blocks = |of: &'static str| {
        let mut all = security.split("```text").skip(1);
        let block = all
            .find(|block| block.contains(of))
            .expect("there is such a user");
        block
            .split("```")
            .next()
            .expect("it ends")
            .split_whitespace()
    };
    let words: Vec<String> = blocks("&shop:inbox:*")
        .chain(blocks("+cluster|slots"))
        .filter(|word| sharded || !["+spublish", "+ssubscribe", "+sunsubscribe"].contains(word))
        .map(|word| {
            word.replace("<password>", "secret")
                .replace("shop:", "suite:")
        })
        .collect();
    let [_, user, rest @ ..] = &words[..] else {
        panic!("{words:?}")
    };
    for node in &cluster.nodes {
        let rest = rest.iter().map(String::as_str);
        let words: Vec<&str> = ["ACL", "SETUSER", user].into_iter().chain(rest).collect();
        node.command(&words).await;
    }
    let url = cluster.url().replace("://", &format!("://{user}:secret@"));
    let build = || {
        portcullis::Portcullis::builder()
            .url(&*url)
            .prefix("suite")
            .build()
    };
    let gates = build().expect("a valid configuration");
    let report = gates.check().await.expect("the cluster answers");
    let lacks = |severity| {
        report
            .findings()
            .iter()
            .any(|finding| finding.severity() == severity && finding.to_string().contains("lacks"))
    };
    assert!(report.is_ok() && !lacks(Severity::Warning), "{report}");
    let guard = gates.mutex("gate").lock().await.expect("it is free");
    drop(guard);

    cluster.nodes[1]
        .command(&["ACL", "SETUSER", user, "-zadd"])
        .await;
    let report = build()
        .expect("a valid configuration")
        .check()
        .await
        .expect("the cluster answers");
    assert!(
        report
            .to_string()
            .contains("problem: the server's user lacks `+zadd`"),
        "{report}"
    );
}
