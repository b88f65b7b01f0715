//! An administrator's tool.

use portcullis::scripts;
use redis::Value;

use crate::example::Example;
use crate::support::Server;

const NAME: &str = "load_scripts";

#[tokio::test]
async fn it_loads_all_scripts_on_each_server_and_tells_which_it_could_not_reach() {
    let servers = [Server::start(), Server::start()];
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let ended = Example::start_with(NAME, &[&urls[0], &urls[1]], &[])
        .end()
        .await;
    assert!(ended.status.success(), "{}", ended.errors);
    let all: Vec<&str> = scripts::all().map(|script| script.digest()).collect();
    for server in &servers {
        let words = [&["SCRIPT", "EXISTS"], &all[..]].concat();
        let exist = server.command(&words).await;
        assert_eq!(exist, Value::Array(vec![Value::Int(1); all.len()]));
    }

    let gone = "redis://admin:secret@127.0.0.1:1/";
    let ended = Example::start_with(NAME, &[gone, &urls[0]], &[])
        .end()
        .await;
    assert!(!ended.status.success());
    assert!(ended.errors.starts_with("server 1: "), "{}", ended.errors);
    assert!(!ended.errors.contains("secret"), "{}", ended.errors);
    assert!(
        ended.output[0].starts_with("server 2: "),
        "{:?}",
        ended.output
    );
}

#[tokio::test]
async fn it_writes_them_into_files_that_redis_cli_can_load() {
    let directory = std::env::temp_dir().join(format!("portcullis-scripts-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a folder for files");
    let path = directory.to_str().expect("a path of text");
    let ended = Example::start_with(NAME, &["--write", path], &[])
        .end()
        .await;
    assert!(ended.status.success(), "{}", ended.errors);
    let server = Server::start();
    for line in &ended.output {
        let (digest, file) = line.split_once(' ').expect("two words");
        let text = std::fs::read_to_string(file).expect("a file");
        let loaded = server.command(&["SCRIPT", "LOAD", &text]).await;
        assert_eq!(loaded, Value::BulkString(digest.into()));
    }
    assert_eq!(ended.output.len(), scripts::all().count());
    std::fs::remove_dir_all(&directory).expect("ours");
}
