//! Clients that know nothing of this crate, at routes that are gated: what they see is what the
//! standards say, and they try again by themselves when they are told to.
//!
//! They need curl and Python 3; requests is fetched into `target/`. The browser's test needs
//! Chromium, and runs by `scripts/test --browser`.

mod browser;
mod curl;
mod python;
mod route;
