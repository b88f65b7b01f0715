//! What the headers of the scripts say, against their bodies and against the crate's constants.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    BASICS, DRAWING, HAND_OFF, NOW, Publish, RATE, RECALL, ROSTER, STRING_HOLDERS, Script, Verb,
    ZSET_HOLDERS, quick, quickest,
};
use super::support::Server;
use crate::backend::server::call::LONGEST_WAIT;
use crate::backend::server::reply::{renewal, status};
use crate::key::Kind;
use crate::time::CLAIM;
use crate::token::Instance;

const PARTS: [&str; 10] = [
    NOW,
    DRAWING,
    BASICS,
    Publish::Plain.part(),
    Publish::Sharded.part(),
    ROSTER,
    STRING_HOLDERS,
    ZSET_HOLDERS,
    HAND_OFF,
    RECALL,
];

/// The first comment of a file, without its dashes.
fn header(body: &str) -> Vec<&str> {
    body.lines()
        .map_while(|line| line.strip_prefix("--"))
        .collect()
}

/// The lines below the header that are code, and not comment.
fn code(body: &str) -> impl Iterator<Item = &str> {
    body.lines()
        .filter(|line| !line.trim_start().starts_with("--"))
}

/// The plain numbers in `<table>[<number>]`.
fn indices(text: &str, table: &str) -> BTreeSet<u32> {
    let open = format!("{table}[");
    text.split(&open)
        .skip(1)
        .filter_map(|rest| rest.split(']').next()?.parse().ok())
        .collect()
}

/// The constants of a `local A, B = 1, 2` in capitals.
fn constants(text: &str) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for line in code(text).filter_map(|line| line.strip_prefix("local ")) {
        let Some((names, values)) = line.split_once(" = ") else {
            continue;
        };
        for (name, value) in names.split(", ").zip(values.split(", ")) {
            if let (true, Ok(value)) = (
                name.chars()
                    .all(|letter| letter.is_ascii_uppercase() || letter == '_'),
                value.parse(),
            ) {
                all.insert(name.to_owned(), value);
            }
        }
    }
    all
}

#[test]
fn headers_list_the_keys_and_arguments_that_bodies_use() {
    for verb in Verb::ALL {
        let body = verb.body();
        let head = header(body).join("\n");
        assert!(
            head.starts_with(&format!(" lease/{}: ", verb.name())),
            "{verb:?}"
        );
        let below = code(body).collect::<Vec<_>>().join("\n");
        for (table, listed) in [
            ("KEYS", indices(&head, "KEYS")),
            ("ARGV", indices(&head, "ARGV")),
        ] {
            let last = listed.len() as u32;
            assert_eq!(
                listed,
                (1..=last).collect(),
                "{verb:?} lists {table} without gaps"
            );
            let used = indices(&below, table);
            // Renewals address further leases by computed indices, in the groups that the header
            // lists once; so does a recheck its tokens.
            let fixed = match (verb, table) {
                (Verb::Renew, _) => (1..=2).collect(),
                (Verb::Recheck, "ARGV") => BTreeSet::from([1]),
                // What a swap runs names them.
                (Verb::Swap, "KEYS") => BTreeSet::new(),
                _ => listed,
            };
            assert_eq!(used, fixed, "{verb:?} uses the {table} that it lists");
        }
    }
}

#[test]
fn keys_and_arguments_are_named_at_the_top_and_nowhere_else() {
    for verb in Verb::ALL {
        let mut below = code(verb.body()).skip_while(|line| line.is_empty());
        let rest: Vec<&str> = below
            .by_ref()
            .skip_while(|line| {
                line.starts_with("local ") && (line.contains("KEYS[") || line.contains("ARGV["))
            })
            .collect();
        for line in rest {
            let computed = matches!(verb, Verb::Renew | Verb::Recheck) && line.contains("index");
            assert!(
                computed || !(line.contains("KEYS") || line.contains("ARGV")),
                "{verb:?}: {line}"
            );
        }
    }
    for part in PARTS {
        assert!(
            !code(part).any(|line| line.contains("KEYS") || line.contains("ARGV")),
            "{part}"
        );
    }
}

#[test]
fn answers_are_those_of_the_header_and_of_the_crate() {
    let known = BTreeMap::from([
        ("HELD", status::HELD),
        ("QUEUED", status::QUEUED),
        ("BUSY", status::BUSY),
        ("FULL", status::FULL),
        ("LATE", status::LATE),
        ("ENDED", status::ENDED),
        ("NEVER", status::NEVER),
        ("INCOMPATIBLE", status::INCOMPATIBLE),
        ("RELEASED", status::RELEASED),
        ("CANCELLED", status::CANCELLED),
        ("GONE", status::GONE),
    ]);
    for verb in [Verb::Acquire, Verb::End] {
        let constants = constants(verb.body());
        for (name, value) in &constants {
            assert_eq!(known.get(name.as_str()), Some(value), "{verb:?}: {name}");
        }
        let head = header(verb.body()).join("\n");
        // Each form of answer: its first number, and how many it has.
        let forms = |text: &str| -> BTreeMap<String, usize> {
            let groups = text
                .split('{')
                .skip(1)
                .filter_map(|rest| rest.split_once('}'));
            groups
                .map(|(form, _)| {
                    (
                        form.split(',').next().unwrap_or_default().to_owned(),
                        form.split(',').count(),
                    )
                })
                .collect()
        };
        let listed = forms(&head);
        let values: BTreeSet<String> = constants.values().map(ToString::to_string).collect();
        assert_eq!(
            listed.keys().cloned().collect::<BTreeSet<_>>(),
            values,
            "{verb:?}"
        );
        assert!(listed.values().all(|length| *length >= 3), "{verb:?}");
        for name in constants.keys() {
            let uses = code(verb.body())
                .filter(|line| !line.starts_with("local ") && line.contains(name.as_str()));
            assert!(uses.count() > 0, "{verb:?} never answers {name}");
        }
    }
    let known = BTreeMap::from([
        ("GONE".to_owned(), renewal::GONE),
        ("OTHER".to_owned(), renewal::OTHER),
        ("INCOMPATIBLE".to_owned(), renewal::INCOMPATIBLE),
    ]);
    let body = Verb::Renew.body();
    assert_eq!(constants(body), known);
    let head = header(body).join(" ");
    for (word, value) in [
        ("gone", renewal::GONE),
        ("fence", renewal::OTHER),
        ("version", renewal::INCOMPATIBLE),
    ] {
        assert!(
            head.contains(&format!("{value}: ")) && head.contains(word),
            "{value}"
        );
    }
}

#[test]
fn numbers_that_both_sides_know_agree() {
    let all = constants(&PARTS.concat());
    assert_eq!(all["CLAIM_MS"] as u128, CLAIM.as_millis());
    assert_eq!(all["INSTANCE_LENGTH"] as usize, Instance::LENGTH);
    assert_eq!(all["WAIT_MS"] as u128, LONGEST_WAIT.as_millis());
    assert!(all["KEEP_MS"] > all["CLAIM_MS"]);
    // The same as text.
    let parts = PARTS.concat();
    for name in ["KEEP", "CLAIM"] {
        let ms = all[&format!("{name}_MS")];
        assert!(
            parts.contains(&format!("local {name} = \"{ms}\"\n")),
            "{name}"
        );
    }
}

#[test]
fn scripts_touch_no_key_but_those_they_are_given() {
    // Every command names its key by a variable that a KEYS entry was put into, on the way from the
    // top of a script.
    let keys = [
        "main",
        "queue",
        "records",
        "roster",
        "clock",
        "gate.main",
        "gate.queue",
        "gate.records",
        "gate.roster",
        "gate.clock",
        "key",
        "unpack(mains",
        "unpack(records",
    ];
    let channels = ["inbox_of(gate.roster", "inbox_of(KEYS[4]", "channel"];
    let bodies = Verb::ALL.map(Verb::body);
    let quick = Kind::ALL.map(|kind| Verb::ALL.map(|verb| quick(kind, verb)));
    let quickest = Kind::ALL.map(|kind| Verb::ALL.map(|verb| quickest(kind, verb)));
    let quick = quick.as_flattened().iter().chain(quickest.as_flattened());
    for part in PARTS.iter().chain([&RATE]).chain(&bodies).chain(quick) {
        for call in code(part).flat_map(|line| line.split("redis.").skip(1)) {
            let call = call.split_once('(').map(|(how, rest)| {
                (
                    how,
                    rest.split([',', ')']).map(str::trim).collect::<Vec<_>>(),
                )
            });
            let Some((how, words)) = call else {
                panic!("{part}")
            };
            assert!(how == "call" || how == "pcall", "redis.{how}");
            match words[0].trim_matches('"') {
                "TIME" => {}
                // Not a key. And a command that may fail, which is why it is by pcall.
                "PUBLISH" => assert!(how == "pcall" && channels.contains(&words[1]), "{words:?}"),
                // The other one: what a quick way can't draw, the whole script may.
                "SET" if how == "pcall" => assert_eq!(words[1], "clock"),
                command => {
                    assert_eq!(command, command.to_uppercase());
                    assert!(
                        how == "call"
                            && (keys.contains(&words[1]) || words[1].starts_with("KEYS[")),
                        "{command} {}",
                        words[1]
                    );
                }
            }
        }
    }
}

#[test]
fn scripts_run_on_every_server_from_6_2_on() {
    for script in Publish::ALL.into_iter().flat_map(Script::all) {
        assert!(
            !script.code.starts_with("#!"),
            "6.2 knows no shebang: {}",
            script.name
        );
        let globals = script
            .code
            .lines()
            .filter(|line| line.starts_with("function "));
        assert_eq!(globals.count(), 0, "{}", script.name);
    }
    for publish in Publish::ALL {
        let names: BTreeSet<&str> = Script::all(publish)
            .map(|script| script.name.as_str())
            .collect();
        assert_eq!(names.len(), 16);
    }
}

#[test]
fn a_server_loads_every_script_under_the_hash_that_we_send() {
    let server = Server::start();
    let mut connection = server.connection();
    for script in Publish::ALL.into_iter().flat_map(Script::all) {
        let sha: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(&script.code)
            .query(&mut connection)
            .expect("it compiles");
        assert_eq!(sha, script.sha, "{}", script.name);
    }
}
