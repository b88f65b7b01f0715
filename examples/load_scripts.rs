//! Loads the scripts on servers, for services whose user may not: those that are built with
//! `preloaded_scripts`.
//!
//! Takes the address of each server that may be the master, with a user who has `+script|load`:
//!
//! ```text
//! cargo run --example load_scripts -- redis://admin:secret@10.0.0.1/ redis://admin:secret@10.0.0.2/
//! ```
//!
//! With `--write DIRECTORY` it writes each script into a file instead, for
//! `redis-cli -x SCRIPT LOAD < FILE`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use portcullis::redis::{self, AsyncConnectionConfig, Client, RedisError};
use portcullis::scripts;

const USAGE: &str = "usage: load_scripts SERVER...\n       load_scripts --write DIRECTORY";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [option, directory] if option == "--write" => write(Path::new(directory)),
        [] => Err(USAGE.to_owned()),
        [first, ..] if first.starts_with('-') => Err(USAGE.to_owned()),
        servers => load_all(servers).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &Path) -> Result<(), String> {
    for script in scripts::all() {
        let file = directory.join(format!("{}.lua", script.name().replace('/', "-")));
        std::fs::write(&file, script.text())
            .map_err(|error| format!("{} can't be written: {error}", file.display()))?;
        println!("{} {}", script.digest(), file.display());
    }
    Ok(())
}

/// On all that can be reached; fails if one can't. Servers are numbered, since an address may hold
/// a password.
async fn load_all(servers: &[String]) -> Result<(), String> {
    let mut problems = Vec::new();
    for (number, server) in servers.iter().enumerate() {
        match load(server).await {
            Ok(count) => println!("server {}: {count} scripts", number + 1),
            Err(error) => problems.push(format!("server {}: {error}", number + 1)),
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems.join("\n"))
    }
}

async fn load(server: &str) -> Result<usize, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(Duration::from_secs(5)));
    let client = Client::open(server)?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    let mut count = 0;
    for script in scripts::all() {
        let digest: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script.text())
            .query_async(&mut connection)
            .await?;
        if digest != script.digest() {
            return Err((
                redis::ErrorKind::UnexpectedReturnType,
                "SCRIPT LOAD was not answered with the script's digest",
            )
                .into());
        }
        count += 1;
    }
    Ok(count)
}
