//! A response body that holds a lease until its end.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::BoxError;
use super::held::Hold;

/// The body of a gated response: the inner service's, or that of a refusal.
///
/// Gives the lease back when its last frame is out, when it fails, and when it is dropped. A frame
/// after which the inner body says that it [has ended](Body::is_end_stream) is the last: servers do
/// not ask for another then.
#[pin_project]
pub struct HeldBody<B> {
    #[pin]
    content: Content<B>,
}

/// The trailers by which an answer ends whose lease was lost, where its reader understands them; an
/// error else.
pub(super) type OnLoss = fn() -> HeaderMap;

#[pin_project(project = ContentProjection)]
enum Content<B> {
    Inner {
        #[pin]
        body: B,
        // Behind the body: dropped after it, whatever its drop does.
        hold: Option<Hold>,
        lost: Option<OnLoss>,
    },
    Problem(Bytes),
    Ended,
}

impl<B> HeldBody<B> {
    pub(super) fn problem(text: Bytes) -> Self {
        Self {
            content: Content::Problem(text),
        }
    }
}

impl<B: Body> HeldBody<B> {
    pub(super) fn new(body: B, hold: Option<Hold>, lost: Option<OnLoss>) -> Self {
        // An empty body may never be polled.
        let hold = hold.filter(|_| !body.is_end_stream());
        Self {
            content: Content::Inner { body, hold, lost },
        }
    }
}

impl<B> Body for HeldBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut content = self.project().content;
        let frame = match content.as_mut().project() {
            ContentProjection::Inner {
                mut body,
                hold,
                lost,
            } => {
                let polled = Hold::poll_while_held(hold, cx, |cx| body.as_mut().poll_frame(cx));
                let frame = match ready!(polled) {
                    Ok(frame) => frame,
                    Err(reason) => {
                        let end = match lost {
                            Some(trailers) => Ok(Frame::trailers(trailers())),
                            None => Err(reason.into()),
                        };
                        content.set(Content::Ended);
                        return Poll::Ready(Some(end));
                    }
                };
                if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
                    *hold = None;
                }
                frame.map(|frame| frame.map_err(Into::into))
            }
            ContentProjection::Problem(text) => {
                let text = std::mem::take(text);
                content.set(Content::Ended);
                (!text.is_empty()).then(|| Ok(Frame::data(text.into())))
            }
            ContentProjection::Ended => None,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Inner { body, .. } => body.is_end_stream(),
            Content::Problem(text) => text.is_empty(),
            Content::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Inner { body, .. } => body.size_hint(),
            Content::Problem(text) => SizeHint::with_exact(text.len() as u64),
            Content::Ended => SizeHint::with_exact(0),
        }
    }
}

/// An empty body, as layers further out ask for that answer themselves.
impl<B> Default for HeldBody<B> {
    fn default() -> Self {
        Self {
            content: Content::Ended,
        }
    }
}

impl<B> fmt::Debug for HeldBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("HeldBody");
        match &self.content {
            Content::Inner { hold, .. } => debug.field("hold", hold).finish_non_exhaustive(),
            Content::Problem(text) => debug.field("problem", text).finish(),
            Content::Ended => debug.finish(),
        }
    }
}
