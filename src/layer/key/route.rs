//! A key from the route that a request has taken.

use axum::extract::MatchedPath;
use http::Method;
use http::request::Parts;

use super::{KeyError, MakeKey};
use crate::key::Key;

/// Makes a key of the route: its path as it was declared, such as `/accounts/{id}`, and the method.
///
/// For one layer over several routes that gives each of them a gate of its own. Never the path that
/// a caller sent, of which there is no end. `HEAD` counts as `GET`, since a `get` handler answers
/// both. Methods that HTTP itself does not define count as one: where a handler takes
/// any method, the caller would else choose among as many gates as it likes.
///
/// Use it with `Router::route_layer`, or on handlers. `Router::layer` covers the fallback too, and
/// so callers that ask for what is not there: a request that took no route is answered with 503
/// instead of 404, and what to do is logged. With [`optional`](super::MakeKey::optional) it passes
/// ungated.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use portcullis::ConcurrencyLimitLayer;
/// use portcullis::layer::route;
///
/// # fn example(gates: portcullis::Portcullis) -> Result<Router, portcullis::ConfigError> {
/// let ten_per_route = ConcurrencyLimitLayer::new(gates.semaphore("routes", 10)?).key(route());
/// let app = Router::new()
///     .route("/reports", get(async || "reports"))
///     .route("/accounts/{id}", get(async || "account"))
///     .route_layer(ten_per_route);
/// # Ok(app) }
/// ```
pub const fn route() -> RouteKey {
    RouteKey { _private: () }
}

/// Makes a key of the route; made by [`route`].
#[derive(Debug, Clone)]
#[must_use = "it makes no key until it is given to a layer"]
pub struct RouteKey {
    _private: (),
}

impl MakeKey for RouteKey {
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
        match parts.extensions.get::<MatchedPath>() {
            Some(path) => Ok(Some(Key::of((method(&parts.method), path.as_str())))),
            None => Err(KeyError::misplaced(
                "`route()` stands where no route was matched: on a fallback, which `Router::layer` \
                 covers too, inside of `nest_service`, or outside of a router; put the layer on \
                 handlers, or on routes by `Router::route_layer`",
            )),
        }
    }
}

fn method(method: &Method) -> &str {
    match *method {
        Method::HEAD => "GET",
        Method::GET
        | Method::POST
        | Method::PUT
        | Method::DELETE
        | Method::PATCH
        | Method::OPTIONS
        | Method::CONNECT
        | Method::TRACE => method.as_str(),
        _ => "other",
    }
}
