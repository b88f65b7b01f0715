//! What is still on a server when all has been given back.

use redis::Commands;

/// A bit above what side keys may outlive their last use by.
const KEPT_MS: i64 = 61_000;

/// Says of each key whatever should not be: a holder, a waiter, a record of one, a life without end
/// or longer than a minute. What may stay for that minute is the clock and the roster of a tag.
pub(crate) fn leftovers(connection: &mut redis::Connection) -> Vec<String> {
    leftovers_under(connection, "")
}

/// The same of keys that begin with `prefix`, on a server that has others, too.
pub(crate) fn leftovers_under(connection: &mut redis::Connection, prefix: &str) -> Vec<String> {
    let found = connection.scan_match(format!("{prefix}*"));
    let keys: redis::RedisResult<Vec<String>> = found.and_then(Iterator::collect);
    let keys = keys.expect("the server lists its keys");
    keys.iter()
        .flat_map(|key| of_key(connection, key))
        .collect()
}

/// The keys that would stay for ever.
pub(crate) fn immortal(connection: &mut redis::Connection) -> Vec<String> {
    let keys: Vec<String> = ask(connection, &["KEYS", "*"]);
    keys.into_iter()
        .filter(|key| ask::<i64>(connection, &["PTTL", key]) == -1)
        .collect()
}

/// Sends one command, which must be answered.
pub(crate) fn ask<T: redis::FromRedisValue>(
    connection: &mut redis::Connection,
    words: &[&str],
) -> T {
    let mut command = redis::Cmd::new();
    command.arg(words);
    command
        .query(connection)
        .unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn of_key(connection: &mut redis::Connection, key: &str) -> Vec<String> {
    let mut found = Vec::new();
    let left: i64 = ask(connection, &["PTTL", key]);
    if left == -2 {
        return found;
    }
    if !(0..=KEPT_MS).contains(&left) {
        found.push(format!("{key}: stays for {left} ms"));
    }
    let kind: String = ask(connection, &["TYPE", key]);
    match kind.as_str() {
        "zset" if key.ends_with(":roster") => {}
        "string" if key.ends_with(":clock") || key.ends_with(":acknowledged") => {}
        "hash" => {
            let fields: Vec<(String, String)> = ask(connection, &["HGETALL", key]);
            let stray = |(name, value): &(String, String)| match name.as_str() {
                "L" | "K" => false,
                "S" => value != "0",
                _ => true,
            };
            found.extend(
                fields
                    .iter()
                    .filter(|field| stray(field))
                    .map(|field| format!("{key}: {field:?}")),
            );
        }
        // Gone between two looks.
        "none" => {}
        kind => found.push(format!("{key}: a {kind}")),
    }
    found
}
