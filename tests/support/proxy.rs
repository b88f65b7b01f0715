//! A TCP proxy that breaks what goes through it, as a network would.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::frames::{first_length, is_message};

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Pass,
    /// Kept back in order, and delivered when the flow passes again.
    Hold,
    /// Delivered this much later.
    Delay(Duration),
    /// No more bytes in a second than these; what is behind them waits at its sender.
    Throttle(usize),
    /// Gone. As TCP never loses bytes in the middle of a connection, one that lost some is reset as
    /// soon as it would pass again.
    Eat,
    /// Messages of subscribed channels are gone, and everything else passes: a push is lost, and no
    /// connection with it.
    EatMessages,
}

/// How often in a second a throttled flow moves on.
const STEPS: usize = 20;

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// The sockets stay open, and nothing gets through in either direction.
    BlackHole,
    /// Requests reach the server, its answers are lost.
    EatReplies,
    /// Requests are kept back and run late, in order.
    HoldRequests,
    /// Requests are lost.
    EatRequests,
    /// Answers are kept back and arrive late, in order.
    HoldReplies,
    /// Both directions take this much longer.
    Delay(Duration),
    /// Pushes are lost, and nothing else.
    EatMessages,
    /// Connections are reset: those that exist, and new ones as they come.
    Cut,
    /// The server's side is closed, the client's stays open and silent for ever. New connections
    /// are silent too.
    HalfOpen,
    /// Each direction as told.
    Flows {
        requests: Flow,
        replies: Flow,
    },
}

impl Mode {
    const fn flows(self) -> Flows {
        let (requests, replies) = match self {
            Self::Pass | Self::Cut | Self::HalfOpen => (Flow::Pass, Flow::Pass),
            Self::BlackHole => (Flow::Eat, Flow::Eat),
            Self::EatReplies => (Flow::Pass, Flow::Eat),
            Self::EatMessages => (Flow::Pass, Flow::EatMessages),
            Self::EatRequests => (Flow::Eat, Flow::Pass),
            Self::HoldRequests => (Flow::Hold, Flow::Pass),
            Self::HoldReplies => (Flow::Pass, Flow::Hold),
            Self::Delay(time) => (Flow::Delay(time), Flow::Delay(time)),
            Self::Flows { requests, replies } => (requests, replies),
        };
        Flows { requests, replies }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flows {
    requests: Flow,
    replies: Flow,
}

/// The modes in force. A connection on which a SUBSCRIBE went by counts as a subscriber's, every
/// other one as for commands.
#[derive(Debug, Clone, Copy)]
struct Modes {
    commands: Mode,
    subscribers: Mode,
    /// Counts the single cuts.
    cuts: u64,
    /// Counts the partings.
    partings: u64,
}

/// A proxy between clients and one server, with a thread and a runtime of its own: neither a
/// blocked test nor a paused clock stops it.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    modes: watch::Sender<Modes>,
    live: Arc<AtomicUsize>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Proxy {
    /// Starts one in front of the server on `port` of this machine.
    pub(crate) fn start(port: u16) -> Self {
        let initial = Modes {
            commands: Mode::Pass,
            subscribers: Mode::Pass,
            cuts: 0,
            partings: 0,
        };
        let (modes, watched) = watch::channel(initial);
        let (end, ended) = oneshot::channel();
        let (ready, own_port) = mpsc::channel();
        let live = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&live);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("the system has room for a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("the loopback interface is up");
                let address = listener.local_addr().expect("a bound socket has an address");
                ready.send(address.port()).expect("the starter waits for it");
                tokio::select! {
                    () = accept(&listener, SocketAddr::from(([127, 0, 0, 1], port)), &watched, &counted) => {}
                    // Dropped or sent, it is the end.
                    _ = ended => {}
                }
            });
        });
        let port = own_port.recv().expect("the proxy's thread is up");
        Self {
            port,
            modes,
            live,
            end: Some(end),
            thread: Some(thread),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Sets the mode of all connections. It is in force when this returns: for what is read from a
    /// socket from here on.
    pub(crate) fn set(&self, mode: Mode) {
        self.modes.send_modify(|modes| {
            modes.commands = mode;
            modes.subscribers = mode;
        });
    }

    /// Sets the mode of the connections that carry commands.
    pub(crate) fn set_commands(&self, mode: Mode) {
        self.modes.send_modify(|modes| modes.commands = mode);
    }

    /// Sets the mode of the connections that subscribe.
    pub(crate) fn set_subscribers(&self, mode: Mode) {
        self.modes.send_modify(|modes| modes.subscribers = mode);
    }

    /// Resets all connections once, and leaves the mode.
    pub(crate) fn cut(&self) {
        self.modes.send_modify(|modes| modes.cuts += 1);
    }

    /// Closes the clients' side of all connections once. What they had sent goes on to the server,
    /// as late as the mode then said: so what is sent on a new connection may overtake it.
    pub(crate) fn part(&self) {
        self.modes.send_modify(|modes| modes.partings += 1);
    }

    /// How many connections are open on the clients' side.
    pub(crate) fn connections(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            // Its panic would have shown in the test already.
            let _ = thread.join();
        }
    }
}

async fn accept(
    listener: &TcpListener,
    server: SocketAddr,
    modes: &watch::Receiver<Modes>,
    live: &Arc<AtomicUsize>,
) {
    loop {
        // Out of file descriptors, say: the client sees the lack soon enough.
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let mut connection = Connection {
            modes: modes.clone(),
            subscriber: AtomicBool::new(false),
            turned: Notify::new(),
            tainted: AtomicBool::new(false),
        };
        connection.modes.mark_unchanged();
        let live = Arc::clone(live);
        live.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            connection.run(client, server).await;
            live.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// What ends the forwarding of a connection.
enum Fate {
    /// One of both sides closed it.
    Closed,
    Cut,
    HalfOpen,
}

struct Connection {
    modes: watch::Receiver<Modes>,
    subscriber: AtomicBool,
    /// Told when it turns out to be a subscriber's: another mode may be in force from here on.
    turned: Notify,
    /// Bytes were lost: nothing that makes sense can follow them.
    tainted: AtomicBool,
}

impl Connection {
    fn mode(&self, modes: &watch::Receiver<Modes>) -> Mode {
        let modes = modes.borrow();
        if self.subscriber.load(Ordering::Relaxed) {
            modes.subscribers
        } else {
            modes.commands
        }
    }

    async fn run(&self, mut client: TcpStream, server: SocketAddr) {
        let cuts = self.modes.borrow().cuts;
        let _ = client.set_nodelay(true);
        let fate = match self.mode(&self.modes) {
            Mode::Cut => Fate::Cut,
            Mode::HalfOpen => Fate::HalfOpen,
            _ => match TcpStream::connect(server).await {
                Err(_) => Fate::Cut,
                Ok(mut server) => {
                    let _ = server.set_nodelay(true);
                    let fate = self.forward(&mut client, &mut server, cuts).await;
                    if matches!(fate, Fate::Cut) {
                        let _ = server.set_zero_linger();
                    }
                    fate
                }
            },
        };
        let fate = match fate {
            Fate::HalfOpen => self.stay_silent(&mut client, cuts).await,
            other => other,
        };
        if matches!(fate, Fate::Cut) {
            let _ = client.set_zero_linger();
        }
    }

    async fn forward(&self, client: &mut TcpStream, server: &mut TcpStream, cuts: u64) -> Fate {
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = server.split();
        tokio::select! {
            biased;
            fate = self.fate(cuts) => fate,
            () = self.pump(client_reads, server_writes, |flows| flows.requests, true) => Fate::Closed,
            () = self.pump(server_reads, client_writes, |flows| flows.replies, false) => Fate::Closed,
        }
    }

    /// Waits until the modes end this connection.
    async fn fate(&self, cuts: u64) -> Fate {
        let mut modes = self.modes.clone();
        loop {
            let mode = self.mode(&modes);
            let Flows { requests, replies } = mode.flows();
            let eats = requests == Flow::Eat || replies == Flow::Eat;
            if mode == Mode::Cut
                || modes.borrow().cuts != cuts
                || (self.tainted.load(Ordering::Relaxed) && !eats)
            {
                return Fate::Cut;
            }
            if mode == Mode::HalfOpen {
                return Fate::HalfOpen;
            }
            tokio::select! {
                () = self.turned.notified() => {}
                changed = modes.changed() => if changed.is_err() {
                    return Fate::Closed;
                },
            }
        }
    }

    /// The client's end of a half-open connection: what it sends goes nowhere, until it gives up.
    async fn stay_silent(&self, client: &mut TcpStream, cuts: u64) -> Fate {
        let mut modes = self.modes.clone();
        let mut buffer = [0; 4096];
        loop {
            if self.mode(&modes) == Mode::Cut || modes.borrow().cuts != cuts {
                return Fate::Cut;
            }
            tokio::select! {
                changed = modes.changed() => if changed.is_err() {
                    return Fate::Closed;
                },
                read = client.read(&mut buffer) => if !read.is_ok_and(|length| length > 0) {
                    return Fate::Closed;
                },
            }
        }
    }

    /// Moves bytes in one direction until either side closes.
    async fn pump(
        &self,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
        flow: fn(Flows) -> Flow,
        requests: bool,
    ) {
        let (queue, mut due) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        let mut modes = self.modes.clone();
        let partings = modes.borrow().partings;
        let parted = {
            let mut modes = self.modes.clone();
            async move {
                // Without the sender the proxy is gone, and this with it.
                let _ = modes.wait_for(|modes| modes.partings != partings).await;
            }
        };
        let read = async move {
            let mut buffer = vec![0; 64 * 1024];
            let mut partial = Vec::new();
            let mut last = Instant::now();
            loop {
                while flow(self.mode(&modes).flows()) == Flow::Hold {
                    if modes.changed().await.is_err() {
                        return;
                    }
                }
                // Looked at before the read, so that a change to Hold while nothing arrives is
                // seen.
                modes.mark_unchanged();
                let rate = match flow(self.mode(&modes).flows()) {
                    Flow::Throttle(rate) => Some(rate),
                    _ => None,
                };
                let room = rate.map_or(buffer.len(), |rate| (rate / STEPS).max(1));
                let length = tokio::select! {
                    biased;
                    changed = modes.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                    read = from.read(&mut buffer[..room]) => match read {
                        Ok(length) if length > 0 => length,
                        _ => return,
                    },
                };
                let bytes = &buffer[..length];
                if requests
                    && bytes
                        .windows(9)
                        .any(|word| word.eq_ignore_ascii_case(b"SUBSCRIBE"))
                {
                    self.subscriber.store(true, Ordering::Relaxed);
                    self.turned.notify_one();
                }
                // Looked at again, because the mode may have changed while this was under way.
                let delay = match flow(self.mode(&modes).flows()) {
                    Flow::Eat => {
                        self.tainted.store(true, Ordering::Relaxed);
                        continue;
                    }
                    Flow::Hold => {
                        // Already out of the socket: it waits here.
                        while flow(self.mode(&modes).flows()) == Flow::Hold {
                            if modes.changed().await.is_err() {
                                return;
                            }
                        }
                        Duration::ZERO
                    }
                    Flow::Pass | Flow::EatMessages | Flow::Throttle(_) => Duration::ZERO,
                    Flow::Delay(time) => time,
                };
                last = last.max(Instant::now() + delay);
                let bytes = if requests || !self.subscriber.load(Ordering::Relaxed) {
                    bytes.to_vec()
                } else {
                    // Value by value, so that one can be taken out. What is not complete waits for
                    // its rest.
                    partial.extend_from_slice(bytes);
                    let eats = flow(self.mode(&modes).flows()) == Flow::EatMessages;
                    let mut whole = Vec::new();
                    while let Some(length) = first_length(&partial) {
                        let value: Vec<u8> = partial.drain(..length).collect();
                        if !(eats && is_message(&value)) {
                            whole.extend(value);
                        }
                    }
                    whole
                };
                if queue.send((last, bytes)).is_err() {
                    return;
                }
                if rate.is_some() {
                    tokio::time::sleep(Duration::from_secs(1) / STEPS as u32).await;
                }
            }
        };
        let mut write = Box::pin(async {
            while let Some((time, bytes)) = due.recv().await {
                tokio::time::sleep_until(time).await;
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        tokio::select! {
            () = &mut write => return,
            () = read => {}
            () = parted => if !requests {
                drop(write);
                let _ = to.shutdown().await;
                // The other direction ends the connection, when all is delivered.
                return std::future::pending().await;
            },
        }
        // Its end of the queue is dropped: what was read before the side closed still arrives.
        write.await;
    }
}
