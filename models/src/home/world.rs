//! What one run of the checker contains: processes and their load, permits, the clock and the faults.

/// How many processes there may be.
pub const PROCESSES: usize = 3;
/// How many ticks a lease lasts.
pub const LEASE: u8 = 3;
/// How many ticks an idle permit is kept, and a seeker that nobody needs.
pub const LINGER: u8 = 1;
/// How many ticks after its sending an acquire still creates something.
pub const TIMEOUT: u8 = 1;
/// How many passes a permit makes while others wait.
pub const PASSES: u8 = 1;

/// How often a process asks for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// So many requests.
    Requests(u8),
    /// As many as it likes.
    Endless,
}

/// How the server's time moves against what is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Each script has a later time than all before.
    Moves,
    /// It was set back: stamps rise only with what is drawn.
    Behind,
    /// An answer, and a place that is drawn right after it, have the same number.
    Stands,
}

/// How many faults of each kind may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A message vanishes.
    pub lose: u8,
    /// A message stays under way while time goes on.
    pub delay: u8,
    /// An acquire runs, and stays under way to run again.
    pub duplicate: u8,
    /// A request that waits is dropped.
    pub cancel: u8,
    /// The first process ends without a word.
    pub crash: u8,
    /// The first process stops, and may go on later.
    pub pause: u8,
    /// The server loses its data.
    pub flush: u8,
}

/// A closed world for the checker.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// What it exercises.
    pub name: &'static str,
    /// Permits of the gate.
    pub capacity: u8,
    /// What each process asks for.
    pub loads: [Load; PROCESSES],
    /// How many requests of one process wait at a time.
    pub crowd: u8,
    /// Whether running processes renew their leases.
    pub renews: bool,
    /// The server's time.
    pub clock: Clock,
    /// Whether the server comes back from a loss of data with a clock that is far behind.
    pub falls_back: bool,
    /// Whether recalls reach nobody.
    pub recalls_lost: bool,
    /// The faults that may happen.
    pub faults: Faults,
    /// How many ticks a process may wait without being served.
    pub patience: u8,
    /// How many ticks an idle permit may be kept while others wait.
    pub promptness: u8,
    /// How many ticks more may be inside than there are permits, after a loss of data.
    pub excess: u8,
}

impl World {
    /// Makes a world of two processes without faults.
    #[must_use]
    pub const fn new(name: &'static str, capacity: u8, first: Load, second: Load) -> Self {
        Self {
            name,
            capacity,
            loads: [first, second, Load::Requests(0)],
            crowd: 2,
            renews: true,
            clock: Clock::Moves,
            falls_back: false,
            recalls_lost: false,
            faults: Faults {
                lose: 0,
                delay: 0,
                duplicate: 0,
                cancel: 0,
                crash: 0,
                pause: 0,
                flush: 0,
            },
            patience: 2,
            promptness: 0,
            excess: 0,
        }
    }

    /// How many passes may overtake a process that waits: so many of each permit of the other
    /// process, and of what the one seeker gets whose place may lie ahead.
    #[must_use]
    pub const fn overtaking(&self) -> u8 {
        PASSES * (self.capacity + 1)
    }
}
