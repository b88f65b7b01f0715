//! A key from a part of the path.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use http::request::Parts;

use super::text::MaxBytes;
use super::{KeyError, MakeKey};
use crate::error::ConfigError;
use crate::key::Key;

const NO_ROUTE: &str = "no route was matched, as on a fallback or outside of a router";

/// Makes a key of the path parameter of this name: `path_param("id")` for `/accounts/{id}`.
///
/// It is decoded as a handler's own `Path` is: `/accounts/7` and `/accounts/%37` make one key. Text
/// is compared as it stands, so `7` and `07` differ even where the handler reads a number. It takes
/// 1 to 256 bytes: a request with an empty or a longer one is refused with 400.
///
/// A route without such a parameter is set up wrongly, and `Router::layer` also sees requests that
/// took no route at all, whose answer would be a 404: both are answered with 503, and what to do is
/// logged. So put the layer on the routes that have the parameter, by `route_layer`. With
/// [`optional`](MakeKey::optional) both pass ungated, and so do all where the name is misspelled.
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
/// let withdraw = post(async || "done").route_layer(one_per_account);
/// Router::new().route("/accounts/{id}/withdraw", withdraw)
/// # }
/// ```
pub const fn path_param(name: &'static str) -> PathParamKey {
    PathParamKey {
        name,
        max_bytes: MaxBytes::DEFAULT,
    }
}

/// Makes a key of a path parameter; made by [`path_param`].
#[derive(Debug, Clone)]
#[must_use = "it makes no key until it is given to a layer"]
pub struct PathParamKey {
    name: &'static str,
    max_bytes: MaxBytes,
}

impl PathParamKey {
    /// Sets how long a value may be, decoded: 1 to 65,536 bytes, 256 by default.
    ///
    /// # Errors
    ///
    /// If it is out of range.
    pub fn max_bytes(mut self, max_bytes: usize) -> Result<Self, ConfigError> {
        self.max_bytes = MaxBytes::new(max_bytes)?;
        Ok(self)
    }

    fn remedy(&self, why: &str) -> String {
        let name = self.name;
        format!(
            "`path_param({name:?})` stands where {why}; put the layer on the routes that have \
             `{{{name}}}` in their path"
        )
    }

    fn key(&self, value: &str) -> Result<Key, KeyError> {
        match self.max_bytes.check(value) {
            Ok(()) => Ok(value.into()),
            Err(why) => {
                let what = format!("path parameter {}", self.name);
                Err(KeyError::unusable(what, why))
            }
        }
    }

    /// What is wrong where there are only `params`, on the route of this path if on any.
    fn absent(&self, params: &RawPathParams, path: Option<&MatchedPath>) -> KeyError {
        let names: Vec<_> = params.iter().map(|(name, _)| format!("`{name}`")).collect();
        let has = if names.is_empty() {
            "no parameters".to_owned()
        } else {
            format!("only the parameters {}", names.join(", "))
        };
        KeyError::misplaced(self.remedy(&match path {
            Some(path) => format!("the route `{}` has {has}", path.as_str()),
            // Where services are nested, parameters are known and the path is not.
            None if !names.is_empty() => format!("the route has {has}"),
            None => NO_ROUTE.to_owned(),
        }))
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
                return Err(KeyError::misplaced(self.remedy(NO_ROUTE)));
            }
        };
        let mut named = params.iter().filter(|(name, _)| *name == self.name);
        match (named.next(), named.next()) {
            (Some((_, value)), None) => self.key(value).map(Some),
            (Some(_), Some(_)) => {
                let remedy = self.remedy("the route has several of this name");
                Err(KeyError::misconfigured(remedy))
            }
            (None, _) => Err(self.absent(&params, parts.extensions.get())),
        }
    }
}
