//! A lock on three independent servers as a model: two clients, requests that are lost or run late,
//! leases that end, agreement on fences, renewals that take it where it is missing, and a server that
//! restarts without its data.
//!
//! Time is counted in ticks, which all clocks share: what they may drift apart is taken off leases
//! elsewhere. Queues and pushes are left out; they decide who asks when, which is any time here.

use std::collections::BTreeSet;

use stateright::{Model, Property};

const SERVERS: usize = 3;
const CLIENTS: usize = 2;
/// How many ticks a lease lasts, and how late a request may create one.
const LEASE: u8 = 2;
const TIMEOUT: u8 = 1;

/// No two clients believe to hold.
pub const EXCLUSION: &str = "exclusion";
/// Who holds later has a greater fence.
pub const FENCES_RISE: &str = "fences rise";
/// When nothing is under way any more, a server holds nothing but for its lease.
pub const NO_ORPHANS: &str = "no orphans";
/// Somebody holds after somebody else: the world is not empty.
pub const TURNS: &str = "they take turns";

/// What is done wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// A lease counts from the answer.
    CountedFromTheAnswer,
    /// One vote is enough, as where only one server answers.
    MajorityOfThoseThatAnswer,
    /// The greatest of the fences is taken without telling the others.
    NoAgreement,
    /// An end leaves no tombstone, and late requests create what they ask for.
    NoTombstone,
    /// Whatever the name, the key is deleted.
    NoComparison,
}

/// A world.
#[derive(Debug, Clone, Copy)]
pub struct Quorum {
    /// How long it lasts.
    pub ticks: u8,
    /// How often each client asks.
    pub attempts: u8,
    /// How often each lease is renewed.
    pub renewals: u8,
    /// How many servers restart without their data.
    pub restarts: u8,
    /// Whether they have no vote for a lease's time then.
    pub quarantine: bool,
    pub mistake: Option<Mistake>,
}

/// One attempt of one client.
type Token = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Server {
    holder: Option<(Token, u8)>,
    fence: u8,
    /// A bit for each token.
    ended: u16,
    /// When it has a vote again.
    votes_at: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Vote {
    #[default]
    None,
    Asked,
    No,
    Yes {
        fence: u8,
        until: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Phase {
    #[default]
    Idle,
    Asking,
    Holding,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Client {
    phase: Phase,
    attempt: u8,
    votes: [Vote; SERVERS],
    fence: u8,
    until: u8,
    renewals: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// With the fence of a lease that is held elsewhere, 0 for none.
    Ask {
        token: Token,
        server: u8,
        sent: u8,
        fence: u8,
    },
    Granted {
        token: Token,
        server: u8,
        sent: u8,
        fence: u8,
        left: u8,
    },
    Denied {
        token: Token,
        server: u8,
    },
    /// Renews, and tells the fence that is agreed on.
    Renew {
        token: Token,
        server: u8,
        sent: u8,
        fence: u8,
    },
    End {
        token: Token,
        server: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    servers: [Server; SERVERS],
    clients: [Client; CLIENTS],
    network: BTreeSet<Message>,
    restarts: u8,
    greatest: u8,
    holds: u8,
    fell: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Start(usize),
    GiveBack(usize),
    Renew(usize),
    Deliver(Message),
    Lose(Message),
    Restart(usize),
    Tick,
}

impl Client {
    fn is_held(&self, now: u8) -> bool {
        self.phase == Phase::Holding && now < self.until
    }

    fn grants(&self, now: u8) -> Vec<(u8, u8)> {
        let votes = self.votes.iter();
        let grants = votes.filter_map(|vote| match vote {
            Vote::Yes { fence, until } if *until > now => Some((*fence, *until)),
            _ => None,
        });
        grants.collect()
    }
}

impl Quorum {
    fn needed(&self) -> usize {
        if self.mistake == Some(Mistake::MajorityOfThoseThatAnswer) {
            1
        } else {
            SERVERS / 2 + 1
        }
    }

    fn token(&self, client: usize, attempt: u8) -> Token {
        client as u8 * self.attempts + attempt
    }

    /// What a server does with a request, and its answer.
    fn serve(&self, state: &mut State, message: Message) {
        let now = state.now;
        let (Message::Ask { server, .. }
        | Message::Renew { server, .. }
        | Message::End { server, .. }) = message
        else {
            return;
        };
        let place = &mut state.servers[server as usize];
        if place.holder.is_some_and(|(_, ends)| ends <= now) {
            place.holder = None;
        }
        let answer = match message {
            Message::Ask {
                token, sent, fence, ..
            } => {
                let late = now > sent + TIMEOUT || place.ended >> token & 1 == 1;
                let late = late && self.mistake != Some(Mistake::NoTombstone);
                let mine = place.holder.is_some_and(|(holder, _)| holder == token);
                let fill = fence > 0;
                let young = now < place.votes_at && !fill;
                if mine || place.holder.is_none() && !late && !young {
                    let ends = place.holder.map_or(now + LEASE, |(_, ends)| ends);
                    place.holder = Some((token, ends));
                    let fence = if fill { fence } else { place.fence + 1 };
                    place.fence = place.fence.max(fence);
                    let left = ends - now;
                    Message::Granted {
                        token,
                        server,
                        sent,
                        fence,
                        left,
                    }
                } else {
                    Message::Denied { token, server }
                }
            }
            Message::Renew {
                token, sent, fence, ..
            } => match &mut place.holder {
                Some((holder, ends)) if *holder == token => {
                    *ends = now + LEASE;
                    place.fence = place.fence.max(fence);
                    let left = LEASE;
                    Message::Granted {
                        token,
                        server,
                        sent,
                        fence,
                        left,
                    }
                }
                _ => Message::Denied { token, server },
            },
            Message::End { token, .. } => {
                place.ended |= 1 << token;
                let mine = place.holder.is_some_and(|(holder, _)| holder == token);
                if mine || self.mistake == Some(Mistake::NoComparison) {
                    place.holder = None;
                }
                return;
            }
            Message::Granted { .. } | Message::Denied { .. } => return,
        };
        state.network.insert(answer);
    }

    fn hear(&self, state: &mut State, message: Message) {
        let (Message::Granted { token, server, .. } | Message::Denied { token, server }) = message
        else {
            return;
        };
        let at = (token / self.attempts) as usize;
        let now = state.now;
        let client = &mut state.clients[at];
        let open = matches!(client.phase, Phase::Asking | Phase::Holding);
        if self.token(at, client.attempt) != token || !open {
            return;
        }
        client.votes[server as usize] = match message {
            Message::Granted {
                sent, fence, left, ..
            } => {
                let from = if self.mistake == Some(Mistake::CountedFromTheAnswer) {
                    now
                } else {
                    sent
                };
                Vote::Yes {
                    fence,
                    until: from + left,
                }
            }
            _ => Vote::No,
        };
        self.judge(state, at);
    }

    /// What the votes of a client come to.
    fn judge(&self, state: &mut State, at: usize) {
        let (now, needed) = (state.now, self.needed());
        let client = &mut state.clients[at];
        let mut grants = client.grants(now);
        if client.phase == Phase::Holding {
            if now >= client.until || grants.len() < needed {
                self.end(state, at);
                return;
            }
        } else {
            if grants.len() < needed {
                return;
            }
            let greatest = grants.iter().map(|(fence, _)| *fence).max().unwrap_or(0);
            let votes = |fence| grants.iter().filter(|grant| grant.0 == fence).count();
            let agreed = grants.iter().map(|(fence, _)| *fence);
            let agreed = agreed.filter(|fence| votes(*fence) >= needed).max();
            let fence = match agreed {
                Some(fence) => fence,
                None if self.mistake == Some(Mistake::NoAgreement) => greatest,
                None => {
                    let token = self.token(at, client.attempt);
                    for (server, vote) in client.votes.iter().enumerate() {
                        if matches!(vote, Vote::Yes { fence, .. } if *fence < greatest) {
                            let (server, sent, fence) = (server as u8, now, greatest);
                            state.network.insert(Message::Renew {
                                token,
                                server,
                                sent,
                                fence,
                            });
                        }
                    }
                    return;
                }
            };
            if self.mistake != Some(Mistake::NoAgreement) {
                grants.retain(|grant| grant.0 == fence);
            }
            client.phase = Phase::Holding;
            client.fence = fence;
            client.until = 0;
            state.holds += 1;
            state.fell |= fence <= state.greatest;
            state.greatest = state.greatest.max(fence);
        }
        let mut ends: Vec<u8> = grants.iter().map(|(_, until)| *until).collect();
        ends.sort_unstable();
        client.until = client.until.max(ends[ends.len() - needed]);
    }

    /// Gives up or gives back.
    fn end(&self, state: &mut State, at: usize) {
        let client = &mut state.clients[at];
        let token = self.token(at, client.attempt);
        for (server, vote) in client.votes.iter().enumerate() {
            if *vote != Vote::No {
                let server = server as u8;
                state.network.insert(Message::End { token, server });
            }
        }
        let attempt = client.attempt + 1;
        *client = Client {
            attempt,
            phase: if attempt < self.attempts {
                Phase::Idle
            } else {
                Phase::Done
            },
            ..Client::default()
        };
    }
}

impl Model for Quorum {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            servers: Default::default(),
            clients: Default::default(),
            network: BTreeSet::new(),
            restarts: self.restarts,
            greatest: 0,
            holds: 0,
            fell: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, client) in state.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle => actions.push(Action::Start(at)),
                Phase::Asking => actions.push(Action::GiveBack(at)),
                Phase::Holding => {
                    actions.push(Action::GiveBack(at));
                    if client.renewals < self.renewals {
                        actions.push(Action::Renew(at));
                    }
                }
                Phase::Done => {}
            }
        }
        for message in &state.network {
            actions.push(Action::Deliver(*message));
            // An end is repeated until it is answered.
            if !matches!(message, Message::End { .. }) {
                actions.push(Action::Lose(*message));
            }
        }
        if state.restarts > 0 {
            actions.extend((0..SERVERS).map(Action::Restart));
        }
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Start(at) => {
                let token = self.token(at, state.clients[at].attempt);
                let (sent, fence) = (state.now, 0);
                for server in 0..SERVERS as u8 {
                    state.network.insert(Message::Ask {
                        token,
                        server,
                        sent,
                        fence,
                    });
                }
                state.clients[at].phase = Phase::Asking;
                state.clients[at].votes = [Vote::Asked; SERVERS];
            }
            Action::GiveBack(at) => self.end(&mut state, at),
            Action::Renew(at) => {
                let client = &mut state.clients[at];
                client.renewals += 1;
                let (sent, fence) = (state.now, client.fence);
                let token = self.token(at, state.clients[at].attempt);
                for (server, vote) in state.clients[at].votes.into_iter().enumerate() {
                    let server = server as u8;
                    state.network.insert(match vote {
                        Vote::Yes { .. } => Message::Renew {
                            token,
                            server,
                            sent,
                            fence,
                        },
                        _ => Message::Ask {
                            token,
                            server,
                            sent,
                            fence,
                        },
                    });
                }
                for vote in &mut state.clients[at].votes {
                    if *vote == Vote::No {
                        *vote = Vote::Asked;
                    }
                }
            }
            Action::Deliver(message) => {
                state.network.remove(&message);
                self.serve(&mut state, message);
                self.hear(&mut state, message);
            }
            Action::Lose(message) => {
                state.network.remove(&message);
            }
            Action::Restart(server) => {
                state.restarts -= 1;
                state.servers[server] = Server {
                    votes_at: if self.quarantine {
                        state.now + LEASE
                    } else {
                        0
                    },
                    ..Server::default()
                };
            }
            Action::Tick => {
                state.now += 1;
                for at in 0..CLIENTS {
                    let client = &state.clients[at];
                    if client.phase == Phase::Holding && state.now >= client.until {
                        self.end(&mut state, at);
                    }
                }
                for server in &mut state.servers {
                    if server.holder.is_some_and(|(_, ends)| ends <= state.now) {
                        server.holder = None;
                    }
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| {
                let held = state
                    .clients
                    .iter()
                    .filter(|client| client.is_held(state.now));
                held.count() <= 1
            }),
            Property::always(FENCES_RISE, |_, state: &State| !state.fell),
            Property::always(NO_ORPHANS, |model: &Self, state: &State| {
                let quiet = state.network.is_empty();
                !quiet
                    || state.servers.iter().all(|server| {
                        server.holder.is_none_or(|(token, ends)| {
                            let at = (token / model.attempts) as usize;
                            let client = &state.clients[at];
                            let over = model.token(at, client.attempt) != token;
                            // A restart forgets tombstones, too: then the lease ends it.
                            !over || ends <= state.now || model.restarts > 0
                        })
                    })
            }),
            Property::sometimes(TURNS, |_, state: &State| state.holds > 1),
        ]
    }
}
