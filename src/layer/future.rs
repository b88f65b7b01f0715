//! The response future of gated services.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use pin_project::pin_project;
use tower_service::Service;

use super::BoxError;
use super::admission::{Admission, Begun, ExtensionsOf, Outcome, Pass, Passage};
use super::body::HeldBody;
use super::service::{Http, Plain};
use super::settings::HoldUntil;

/// Waits for the request's turn, then for the inner service's answer: the future of
/// [`Gated`](super::Gated).
///
/// # Cancel safety
///
/// Dropped while it waits, it gives up the place in the queue; dropped later, it drops the inner
/// future and gives the lease back. What could not be told to the server by then is repeated in the
/// background, or ends with the TTL.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<S: Service<Req>, Req, P> {
    #[pin]
    passage: Passage<S, Req>,
    protocol: PhantomData<fn() -> P>,
}

impl<S: Service<Req> + Clone, Req, P> ResponseFuture<S, Req, P> {
    #[inline]
    pub(super) fn new(
        admission: &Arc<Admission>,
        begun: Begun,
        ready: &mut S,
        request: Req,
        extensions: ExtensionsOf<Req>,
    ) -> Self {
        let passage = Passage::new(admission, begun, ready, request, extensions);
        Self {
            passage,
            protocol: PhantomData,
        }
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, Request<ReqBody>, Http>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body,
{
    type Output = Result<Response<HeldBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut passage = self.project().passage;
        let outcome = ready!(passage.as_mut().poll(cx))?;
        let response = match outcome {
            Outcome::Answered(response, Pass { hold, used }) => {
                let hold = hold.filter(|_| passage.hold_until() == HoldUntil::Body);
                let lost = passage.on_loss(&response);
                let (mut head, body) = response.into_parts();
                passage.settle(used.as_deref(), &mut head);
                Response::from_parts(head, HeldBody::new(body, hold, lost))
            }
            Outcome::Rejected(rejection) => passage.answer(&rejection).map(HeldBody::problem),
        };
        Poll::Ready(Ok(response))
    }
}

impl<S, Req> Future for ResponseFuture<S, Req, Plain>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match ready!(self.project().passage.poll(cx)) {
            Ok(Outcome::Answered(response, _held_until_here)) => Poll::Ready(Ok(response)),
            Ok(Outcome::Rejected(rejection)) => Poll::Ready(Err(rejection.into_error())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

impl<S: Service<Req>, Req, P> fmt::Debug for ResponseFuture<S, Req, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResponseFuture")
            .field(&self.passage)
            .finish()
    }
}
