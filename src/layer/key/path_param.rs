//! A key from a part of the path.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use http::request::Parts;

use super::{KeyError, MakeKey};
use crate::key::Key;

const NO_ROUTE: &str = "no route was matched, as on a fallback or outside of a router";

/// Makes a key of the path parameter of this name: `path_param("id")` for `/accounts/{id}`.
///
/// It is decoded as a handler's own `Path` is: `/accounts/7` and `/accounts/%37` make one key. Text
/// is compared as it stands, so `7` and `07` differ even where the handler reads a number.
///
/// A route without such a parameter is set up wrongly: its requests are answered with 503, and what
/// to do is logged. So put the layer on the routes that have it, on their handlers or by
/// `route_layer`.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use axum::routing::post;
/// use portcullis::MutexLayer;
/// use portcullis::layer::path_param;
///
/// # fn example(gates: portcullis::Portcullis) -> Router {
/// let one_per_account = MutexLayer::new(gates.mutex("withdraw")).key(path_param("id"));
/// Router::new().route("/accounts/{id}/withdraw", post(async || "done").layer(one_per_account))
/// # }
/// ```
pub const fn path_param(name: &'static str) -> PathParamKey {
    PathParamKey { name }
}

/// Makes a key of a path parameter; made by [`path_param`].
#[derive(Debug, Clone)]
#[must_use = "it makes no key until it is given to a layer"]
pub struct PathParamKey {
    name: &'static str,
}

impl PathParamKey {
    fn misconfigured(&self, why: &str) -> KeyError {
        let name = self.name;
        KeyError::misconfigured(format!(
            "`path_param({name:?})` stands where {why}; put the layer on the routes that have \
             `{{{name}}}` in their path"
        ))
    }

    /// What is wrong where there are only `params`, on the route of this path if on any.
    fn absent(&self, params: &RawPathParams, path: Option<&MatchedPath>) -> KeyError {
        let names: Vec<_> = params.iter().map(|(name, _)| format!("`{name}`")).collect();
        let has = if names.is_empty() {
            "no parameters".to_owned()
        } else {
            format!("only the parameters {}", names.join(", "))
        };
        self.misconfigured(&match path {
            Some(path) => format!("the route `{}` has {has}", path.as_str()),
            // Where services are nested, parameters are known and the path is not.
            None if !names.is_empty() => format!("the route has {has}"),
            None => NO_ROUTE.to_owned(),
        })
    }
}

impl MakeKey for PathParamKey {
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
        let params = {
            let params = pin!(RawPathParams::from_request_parts(parts, &()));
            params.poll(&mut Context::from_waker(Waker::noop()))
        };
        let params = match params {
            Poll::Ready(Ok(params)) => params,
            Poll::Ready(Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => {
                return Err(KeyError::unusable("path", "it is not UTF-8 when decoded"));
            }
            // They are in the extensions of a request that was routed, so there is nothing to wait
            // for.
            Poll::Ready(Err(_)) | Poll::Pending => {
                return Err(self.misconfigured(NO_ROUTE));
            }
        };
        let mut named = params.iter().filter(|(name, _)| *name == self.name);
        match (named.next(), named.next()) {
            (Some((_, value)), None) => Ok(Some(value.into())),
            (Some(_), Some(_)) => Err(self.misconfigured("the route has several of this name")),
            (None, _) => Err(self.absent(&params, parts.extensions.get())),
        }
    }
}
