//! An end and an acquire of one gate that are to be sent at the same time go as one call: a process that
//! gives up a permit that it kept, because others wait, mostly needs the next one, and of a call most is
//! what every call costs.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::backend::server::call::{Ask, Body, Call, End};
use crate::key::Resource;
use crate::time::Instant;

/// Joins what may be of the calls that are about to be sent.
///
/// Of the acquires only those that keep permits and wait: others are answered faster by themselves, or
/// might be refused for what the next end frees. The calls of a tag stay in their order, but where ends
/// and such acquires of one gate follow on one another: there each acquire runs as soon as one of the
/// ends has.
pub(super) fn join(calls: Vec<Call>) -> Vec<Call> {
    let any = |call: &Call| matches!(&call.body, Body::Acquire(ask) if is_joined(ask));
    if !calls.iter().any(any) {
        return calls;
    }
    let mut joined = Vec::with_capacity(calls.len());
    let mut runs: Vec<Run> = Vec::new();
    for call in calls {
        let tag = call.tag();
        if let Some(at) = runs.iter().position(|run| run.resource.tag == tag)
            && !runs[at].takes(&call.body)
        {
            runs.swap_remove(at).close(&mut joined);
        }
        let Call { sent, body } = call;
        match body {
            Body::End(end) => Run::of(&mut runs, &end.resource).ends.push((sent, end)),
            Body::Acquire(ask) if is_joined(&ask) => {
                Run::of(&mut runs, &ask.resource).asks.push((sent, ask));
            }
            body => joined.push(Call { sent, body }),
        }
    }
    for run in runs {
        run.close(&mut joined);
    }
    joined
}

fn is_joined(ask: &Ask) -> bool {
    ask.kept > 0 && ask.wait != Some(Duration::ZERO)
}

/// Ends and acquires of one gate, with nothing else of their tag in between.
struct Run {
    resource: Arc<Resource>,
    ends: Vec<(Instant, End)>,
    asks: Vec<(Instant, Ask)>,
}

impl Run {
    /// The one of this gate; a tag has one at a time.
    fn of<'a>(runs: &'a mut Vec<Self>, resource: &Arc<Resource>) -> &'a mut Self {
        let at = runs.iter().position(|run| run.resource == *resource);
        let at = at.unwrap_or_else(|| {
            runs.push(Self {
                resource: Arc::clone(resource),
                ends: Vec::new(),
                asks: Vec::new(),
            });
            runs.len() - 1
        });
        &mut runs[at]
    }

    /// Whether a call may go on with it. What is asked of one token stays in its order.
    fn takes(&self, body: &Body) -> bool {
        match body {
            Body::End(end) => {
                let same = |(_, ask): &(Instant, Ask)| ask.token == end.token;
                end.resource == self.resource && !self.asks.iter().any(same)
            }
            Body::Acquire(ask) => {
                let same = |(_, end): &(Instant, End)| end.token == ask.token;
                let here = is_joined(ask) && ask.resource == self.resource;
                here && !self.ends.iter().any(same)
            }
            _ => false,
        }
    }

    /// The last of the ends with the first of the acquires, so that none waits for longer than before.
    fn close(self, calls: &mut Vec<Call>) {
        let (mut ends, mut asks) = (self.ends, self.asks);
        let pairs = ends.len().min(asks.len());
        let paired = ends.split_off(ends.len() - pairs);
        let later = asks.split_off(pairs);
        let end = |(sent, end)| (sent, Body::End(end));
        // From when an end was sent nothing is counted.
        let swap = |((_, end), (sent, ask))| (sent, Body::Swap(Box::new((end, ask))));
        let ask = |(sent, ask)| (sent, Body::Acquire(ask));
        let swaps = paired.into_iter().zip(asks).map(swap);
        let all = ends.into_iter().map(end).chain(swaps);
        let all = all.chain(later.into_iter().map(ask));
        calls.extend(all.map(|(sent, body)| Call { sent, body }));
    }
}

/// Each call with what the server said to it, where some were joined. One that failed as a whole stays
/// as it is: it may be sent again, or elsewhere.
pub(in crate::backend::server) fn part(
    calls: Vec<Call>,
    values: Vec<Value>,
) -> (Vec<Call>, Vec<Value>) {
    let is_swap = |call: &Call| matches!(call.body, Body::Swap(_));
    if calls.len() != values.len() || !calls.iter().any(is_swap) {
        return (calls, values);
    }
    let parts = calls.into_iter().zip(values).flat_map(|(call, value)| {
        let Call { sent, body } = call;
        match (body, value) {
            (Body::Swap(swap), Value::Array(said)) if said.len() == 2 => {
                let bodies = [Body::End(swap.0), Body::Acquire(swap.1)];
                let parts = bodies.into_iter().zip(said);
                parts
                    .map(|(body, said)| (Call { sent, body }, said))
                    .collect()
            }
            (body, value) => vec![(Call { sent, body }, value)],
        }
    });
    parts.unzip()
}
