//! How one node sees its cluster: what it answers to `CLUSTER SLOTS` and `CLUSTER NODES`.
//!
//! The former names each node as clients are to reach it. The latter tells by which epoch each
//! master owns its slots: of two that claim one, the later is right, whoever tells it.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use redis::{Pipeline, RedisError, Value};

use super::redirect::Address;
use crate::key::SLOTS;

/// One master's claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::server) struct Claim {
    /// The node's own name, which it keeps wherever it moves.
    pub(in crate::backend::server) id: String,
    pub(in crate::backend::server) address: Address,
    /// 0 where it is not told.
    pub(in crate::backend::server) epoch: u64,
    pub(in crate::backend::server) slots: Vec<RangeInclusive<u16>>,
    /// Who may succeed it.
    pub(in crate::backend::server) replicas: Vec<Address>,
}

/// What one node told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::backend::server) struct View {
    pub(in crate::backend::server) claims: Vec<Claim>,
    /// Masters without slots, by name, with their epochs: what they owned is no longer theirs.
    pub(in crate::backend::server) without: Vec<(String, u64)>,
}

/// What is asked.
pub(in crate::backend::server) fn questions() -> Pipeline {
    let mut questions = Pipeline::new();
    questions.cmd("CLUSTER").arg("SLOTS");
    questions.cmd("CLUSTER").arg("NODES");
    questions
}

/// Reads the answers of a node at `host`.
///
/// Fails with the server's error if it is none of a cluster, or may not be asked. The second answer
/// may be a no: then all epochs are 0.
pub(in crate::backend::server) fn read(
    host: &str,
    answers: Vec<Value>,
) -> Result<View, RedisError> {
    let mut answers = answers.into_iter();
    let slots = answers.next().unwrap_or(Value::Nil).extract_error()?;
    let nodes = match answers.next() {
        Some(Value::BulkString(bytes)) => String::from_utf8(bytes).unwrap_or_default(),
        Some(Value::VerbatimString { text, .. }) => text,
        _ => String::new(),
    };
    let epochs: HashMap<&str, u64> = nodes.lines().filter_map(epoch).collect();
    let mut claims: Vec<Claim> = Vec::new();
    let Value::Array(rows) = slots else {
        return Err(garbled());
    };
    for row in rows {
        let (range, id, address, replicas) = row_of(&row).ok_or_else(garbled)?;
        if let Some(claim) = claims.iter_mut().find(|claim| claim.id == id) {
            claim.slots.push(range);
            continue;
        }
        claims.push(Claim {
            address: address.told_by(host),
            epoch: epochs.get(&*id).copied().unwrap_or(0),
            slots: vec![range],
            replicas: replicas
                .into_iter()
                .map(|replica| replica.told_by(host))
                .collect(),
            id,
        });
    }
    let without = epochs
        .into_iter()
        .filter(|(id, _)| claims.iter().all(|claim| claim.id != *id))
        .map(|(id, epoch)| (id.to_owned(), epoch))
        .collect();
    Ok(View { claims, without })
}

/// A master's name and epoch, from its line in `CLUSTER NODES`: `<id> <address> <flags> <master>
/// <ping> <pong> <epoch> <link> <slots>…`.
fn epoch(line: &str) -> Option<(&str, u64)> {
    let words: Vec<&str> = line.split(' ').collect();
    let is_master = words.get(2)?.split(',').any(|flag| flag == "master");
    is_master.then_some((*words.first()?, words.get(6)?.parse().ok()?))
}

/// One row of `CLUSTER SLOTS`: start, end, then each node as host, port, id and more. The first is
/// the master.
fn row_of(row: &Value) -> Option<(RangeInclusive<u16>, String, Address, Vec<Address>)> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(start), Value::Int(end), master, replicas @ ..] = row.as_slice() else {
        return None;
    };
    let (start, end) = (u16::try_from(*start).ok()?, u16::try_from(*end).ok()?);
    if start > end || usize::from(end) >= SLOTS {
        return None;
    }
    let (address, id) = node_of(master)?;
    let replicas = replicas.iter().filter_map(node_of);
    let replicas = replicas.map(|(address, _)| address).collect();
    Some((start..=end, id, address, replicas))
}

fn node_of(node: &Value) -> Option<(Address, String)> {
    let Value::Array(node) = node else {
        return None;
    };
    let [host, Value::Int(port), id, ..] = node.as_slice() else {
        return None;
    };
    let host = match host {
        Value::Nil => String::new(),
        host => text(host)?,
    };
    Some((Address::new(host, u16::try_from(*port).ok()?), text(id)?))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

fn garbled() -> RedisError {
    (
        redis::ErrorKind::UnexpectedReturnType,
        "CLUSTER SLOTS was not answered with slots",
    )
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn node(host: &str, port: i64, id: &str) -> Value {
        Value::Array(vec![
            bulk(host),
            Value::Int(port),
            bulk(id),
            Value::Array(vec![]),
        ])
    }

    fn row(start: i64, end: i64, nodes: &[Value]) -> Value {
        Value::Array([&[Value::Int(start), Value::Int(end)], nodes].concat())
    }

    const NODES: &str = "\
aa 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-99 300-16383\n\
bb 127.0.0.1:7001@17001,b.example master - 0 1426238316232 9 connected 100-299 [12-<-aa]\n\
cc 127.0.0.1:7002@17002 slave bb 0 1426238316232 9 connected\n\
dd 127.0.0.1:7003@17003 master,fail - 0 0 2 disconnected\n";

    #[test]
    fn a_view_joins_the_ranges_of_each_master_and_knows_their_epochs() {
        let slots = Value::Array(vec![
            row(0, 99, &[node("", 7000, "aa")]),
            row(100, 299, &[node("b", 7001, "bb"), node("c", 7002, "cc")]),
            row(300, 16_383, &[node("", 7000, "aa")]),
        ]);
        let view = read("h", vec![slots, bulk(NODES)]).expect("an answer of a cluster");
        let [a, b] = &view.claims[..] else {
            panic!("{view:?}")
        };
        assert_eq!(
            (&*a.id, a.epoch, &a.address),
            ("aa", 1, &Address::new("h", 7000))
        );
        assert_eq!(a.slots, [0..=99, 300..=16_383]);
        assert_eq!(
            (&*b.id, b.epoch, &b.address),
            ("bb", 9, &Address::new("b", 7001))
        );
        assert_eq!(b.replicas, [Address::new("c", 7002)]);
        assert_eq!(view.without, [("dd".to_owned(), 2)]);
    }

    #[test]
    fn without_the_right_to_ask_for_epochs_there_are_none() {
        let slots = Value::Array(vec![row(0, 16_383, &[node("a", 1, "aa")])]);
        let view = read("h", vec![slots, Value::Nil]).expect("an answer of a cluster");
        assert_eq!(view.claims[0].epoch, 0);
    }

    #[test]
    fn garbage_is_no_view() {
        for slots in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![row(5, 4, &[node("a", 1, "aa")])]),
            Value::Array(vec![row(0, 16_384, &[node("a", 1, "aa")])]),
            Value::Array(vec![row(0, 1, &[])]),
            Value::Array(vec![row(0, 1, &[node("a", 70_000, "aa")])]),
        ] {
            assert!(
                read("h", vec![slots.clone(), Value::Nil]).is_err(),
                "{slots:?}"
            );
        }
    }
}
