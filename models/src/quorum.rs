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
    /// What is done wrong, if anything.
    pub mistake: Option<Mistake>,
}

/// One attempt of one client.
type Token = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Server {
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
struct Client {
    phase: Phase,
    attempt: u8,
    votes: [Vote; SERVERS],
    fence: u8,
    until: u8,
    renewals: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    /// With the fence of a lease that is held elsewhere, 0 for none.
    Ask,
    Granted,
    Denied,
    /// Renews, and tells the fence that is agreed on.
    Renew,
    End,
}

/// What is under way between a client and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    kind: Kind,
    token: Token,
    server: usize,
    sent: u8,
    fence: u8,
    left: u8,
}

impl Message {
    fn request(kind: Kind, token: Token, server: usize, sent: u8, fence: u8) -> Self {
        Self {
            kind,
            token,
            server,
            sent,
            fence,
            left: 0,
        }
    }

    fn granted(self, fence: u8, left: u8) -> Self {
        Self {
            kind: Kind::Granted,
            fence,
            left,
            ..self
        }
    }

    fn denied(self) -> Self {
        Self {
            kind: Kind::Denied,
            sent: 0,
            fence: 0,
            left: 0,
            ..self
        }
    }
}

/// All there is.
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

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A client asks.
    Start(usize),
    /// It gives up, or back.
    GiveBack(usize),
    /// It renews its lease.
    Renew(usize),
    /// A message arrives.
    Deliver(Message),
    /// A server restarts without its data.
    Restart(usize),
    /// Time passes.
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
    fn needed(self) -> usize {
        if self.mistake == Some(Mistake::MajorityOfThoseThatAnswer) {
            1
        } else {
            SERVERS / 2 + 1
        }
    }

    fn token(self, client: usize, attempt: u8) -> Token {
        client as u8 * self.attempts + attempt
    }

    /// What a server does with a request, and its answer.
    fn serve(self, state: &mut State, message: Message) {
        let now = state.now;
        let Message {
            kind,
            token,
            server,
            sent,
            fence,
            ..
        } = message;
        let place = &mut state.servers[server];
        if place.holder.is_some_and(|(_, ends)| ends <= now) {
            place.holder = None;
        }
        let mine = place.holder.is_some_and(|(holder, _)| holder == token);
        let answer = match kind {
            Kind::Ask => {
                let late = now > sent + TIMEOUT || place.ended >> token & 1 == 1;
                let late = late && self.mistake != Some(Mistake::NoTombstone);
                let fill = fence > 0;
                let young = now < place.votes_at && !fill;
                if mine || place.holder.is_none() && !late && !young {
                    let ends = place.holder.map_or(now + LEASE, |(_, ends)| ends);
                    place.holder = Some((token, ends));
                    let fence = if fill { fence } else { place.fence + 1 };
                    place.fence = place.fence.max(fence);
                    message.granted(fence, ends - now)
                } else {
                    // Who holds nothing yet does nothing upon a no: it may as well be told at once.
                    return self.hear(state, message.denied());
                }
            }
            Kind::Renew if mine => {
                place.holder = Some((token, now + LEASE));
                place.fence = place.fence.max(fence);
                message.granted(fence, LEASE)
            }
            Kind::Renew => message.denied(),
            Kind::End => {
                place.ended |= 1 << token;
                if mine {
                    place.holder = None;
                }
                return;
            }
            Kind::Granted | Kind::Denied => return,
        };
        state.network.insert(answer);
    }

    fn hear(self, state: &mut State, message: Message) {
        let at = (message.token / self.attempts) as usize;
        let now = state.now;
        let client = &mut state.clients[at];
        let open = matches!(client.phase, Phase::Asking | Phase::Holding);
        if self.token(at, client.attempt) != message.token || !open {
            return;
        }
        client.votes[message.server] = match message.kind {
            Kind::Granted => {
                let late = self.mistake == Some(Mistake::CountedFromTheAnswer);
                let from = if late { now } else { message.sent };
                let until = from + message.left;
                Vote::Yes {
                    fence: message.fence,
                    until,
                }
            }
            Kind::Denied => Vote::No,
            Kind::Ask | Kind::Renew | Kind::End => return,
        };
        self.judge(state, at);
    }

    /// Whether this attempt is over for its client.
    fn is_over(self, state: &State, token: Token) -> bool {
        let at = (token / self.attempts) as usize;
        self.token(at, state.clients[at].attempt) != token
    }

    /// Drops messages that can change nothing any more: so states are one that differ in nothing
    /// else.
    fn forget(self, state: &mut State) {
        let tombstones = self.mistake != Some(Mistake::NoTombstone);
        let dead: Vec<Message> = state
            .network
            .iter()
            .filter(|message| {
                let server = &state.servers[message.server];
                let holds = server
                    .holder
                    .is_some_and(|(holder, _)| holder == message.token);
                match message.kind {
                    Kind::Granted | Kind::Denied => self.is_over(state, message.token),
                    Kind::Ask => {
                        let late = state.now > message.sent + TIMEOUT;
                        let ended = server.ended >> message.token & 1 == 1;
                        tombstones && !holds && (late || ended)
                    }
                    Kind::Renew => !holds && self.is_over(state, message.token),
                    Kind::End => false,
                }
            })
            .copied()
            .collect();
        for message in dead {
            state.network.remove(&message);
        }
    }

    /// What the votes of a client come to.
    fn judge(self, state: &mut State, at: usize) {
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
                            let renew = Message::request(Kind::Renew, token, server, now, greatest);
                            state.network.insert(renew);
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
    fn end(self, state: &mut State, at: usize) {
        let client = &mut state.clients[at];
        let token = self.token(at, client.attempt);
        for (server, vote) in client.votes.iter().enumerate() {
            if *vote != Vote::No {
                let end = Message::request(Kind::End, token, server, 0, 0);
                state.network.insert(end);
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
            // One that is lost is one that is never delivered.
            actions.push(Action::Deliver(*message));
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
                for server in 0..SERVERS {
                    let ask = Message::request(Kind::Ask, token, server, state.now, 0);
                    state.network.insert(ask);
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
                    let kind = match vote {
                        Vote::Yes { .. } => Kind::Renew,
                        Vote::No => Kind::Ask,
                        // One request at a time.
                        Vote::Asked | Vote::None => continue,
                    };
                    let request = Message::request(kind, token, server, sent, fence);
                    state.network.insert(request);
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
        self.forget(&mut state);
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
                // A restart forgets tombstones, too: then the lease ends it.
                let mut servers = state.servers.iter().enumerate();
                servers.all(|(at, server)| {
                    let Some((token, _)) = server.holder else {
                        return true;
                    };
                    let mut messages = state.network.iter();
                    let under_way = messages.any(|message| {
                        message.token == token && message.server == at && message.kind == Kind::End
                    });
                    model.restarts > 0 || under_way || !model.is_over(state, token)
                })
            }),
            Property::sometimes(TURNS, |_, state: &State| state.holds > 1),
        ]
    }
}
