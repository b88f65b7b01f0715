//! Tasks of several processes that all want the same thing, and what came of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::child::{self, Ready, fleet};
use super::cost;
use super::measure::{jain, quantile};
use super::support::history::most_inside;
use super::support::{History, Hold, Server};

/// What is wanted, as one process has it.
pub(crate) trait Entrance: Clone + Send + 'static {
    /// It leaves by [`Entrance::leave`].
    type Inside: Send;

    /// One attempt, which may wait; `None` if it failed.
    fn enter(&self) -> impl Future<Output = Option<Self::Inside>> + Send;

    /// Waits for the answer; false if none came in time.
    fn leave(inside: Self::Inside) -> impl Future<Output = bool> + Send;
}

/// What the tasks of one process do.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) tasks: u32,
    /// Zero for none at all.
    pub(crate) hold: Duration,
}

/// One wait of a task, and the hold in which it ended. All times are of [`History::now`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turn {
    task: u32,
    asked: u64,
    /// How many attempts failed.
    failures: u32,
    /// `None` if it still waited when it was told to stop.
    inside: Option<Span>,
}

/// From when a task knew that it was inside until it began to leave.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Span {
    begin: u64,
    end: u64,
    /// Whether it was told that it has left.
    answered: bool,
}

/// A key that nobody has used: what a stopped fleet leaves behind is not in the next one's way.
pub(crate) fn fresh_key() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("contended:{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Within a child: enters and leaves once, so that all connections that are needed are there.
pub(crate) async fn warm_up<E: Entrance>(own: &E) {
    let inside = loop {
        // A machine that is busy may take longer than one attempt waits.
        if let Some(inside) = own.enter().await {
            break inside;
        }
    };
    E::leave(inside).await;
}

/// A key for [`warm_up`], of this process alone.
pub(crate) fn own_key() -> String {
    format!("own:{}", std::process::id())
}

/// Within a child: lets tasks enter, hold and leave, again and again, until they are to stop.
pub(crate) async fn contend<E: Entrance>(
    entrance: &E,
    work: Work,
    all_ready: &mut dyn FnMut(),
) -> Vec<Turn> {
    let (tell, told) = watch::channel(false);
    all_ready();
    let tasks: Vec<_> = (0..work.tasks)
        .map(|task| tokio::spawn(take_turns(entrance.clone(), task, work.hold, told.clone())))
        .collect();
    child::stop().await;
    tell.send_replace(true);
    let mut turns = Vec::new();
    for task in tasks {
        turns.extend(task.await.expect("no task panics"));
    }
    turns
}

async fn take_turns<E: Entrance>(
    entrance: E,
    task: u32,
    hold: Duration,
    mut told: watch::Receiver<bool>,
) -> Vec<Turn> {
    let mut turns = Vec::new();
    loop {
        let mut turn = Turn {
            task,
            asked: History::now(),
            failures: 0,
            inside: None,
        };
        let inside = loop {
            tokio::select! {
                biased;
                _ = told.wait_for(|told| *told) => {
                    // A wait that is under way counts, or those who starve would not be seen.
                    turns.push(turn);
                    return turns;
                }
                entered = entrance.enter() => match entered {
                    Some(inside) => break inside,
                    None => turn.failures += 1,
                },
            }
        };
        let begin = History::now();
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        // Before it leaves: from here on somebody else may be inside.
        let end = History::now();
        let answered = E::leave(inside).await;
        turn.inside = Some(Span {
            begin,
            end,
            answered,
        });
        turns.push(turn);
    }
}

/// What was used up to some moment.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: u64,
    scripts: u64,
    commands: u64,
    server: Duration,
    clients: Duration,
}

impl Moment {
    fn now(server: &Server, sends: &[&str], clients: &[Ready]) -> Self {
        Self {
            at: History::now(),
            scripts: cost::commands(server, &["evalsha", "eval"]),
            commands: cost::commands(server, sends),
            server: cost::ran(server.pid()),
            clients: clients.iter().map(|client| cost::ran(client.pid())).sum(),
        }
    }
}

/// What a fleet did in a slice of its time.
#[derive(Debug)]
pub(crate) struct Slice {
    tasks: usize,
    seconds: f64,
    /// Those that began within the slice, in the order of their beginning.
    holds: Vec<(Member, Span)>,
    /// In milliseconds, sorted: see [`waited`].
    waits: Vec<f64>,
    /// The same of each process.
    waits_of: Vec<Vec<f64>>,
    failures: u32,
    /// How often somebody entered while another was inside, in the fleet's whole life.
    pub(crate) overlaps: u64,
    /// In the fleet's whole life.
    pub(crate) most_inside: u64,
    /// How many holds were given back without an answer, in the fleet's whole life.
    pub(crate) unanswered: usize,
    scripts: u64,
    commands: u64,
    server: Duration,
    clients: Duration,
}

/// A task of a fleet: its process and its number there.
type Member = (usize, u32);

/// Lets a fleet contend, one process for each of `tasks`, each with `work`. Its clients send
/// commands of the names in `sends`, which none of their scripts call.
///
/// What is counted begins when all wait in line and ends before they stop: neither their coming nor
/// their going is part of an acquisition's cost.
pub(crate) fn measure(
    server: &Server,
    role: &str,
    tasks: &[impl Serialize],
    work: Work,
    slice: Duration,
    sends: &[&str],
) -> Slice {
    let (processes, [begin, end]) = watch_fleet(server, role, tasks, slice, sends);
    let tasks = processes.len() * work.tasks as usize;
    Slice::of(&processes, tasks, begin, end)
}

/// The same where each process has a number of tasks of its own, and of commands only scripts are
/// counted.
pub(crate) fn measure_mixed(
    server: &Server,
    role: &str,
    tasks: &[impl Serialize],
    numbers: &[u32],
    slice: Duration,
) -> Slice {
    let (processes, [begin, end]) = watch_fleet(server, role, tasks, slice, &[]);
    let tasks = numbers.iter().sum::<u32>() as usize;
    Slice::of(&processes, tasks, begin, end)
}

fn watch_fleet(
    server: &Server,
    role: &str,
    tasks: &[impl Serialize],
    slice: Duration,
    sends: &[&str],
) -> (Vec<Vec<Turn>>, [Moment; 2]) {
    fleet(role, tasks, |clients| {
        thread::sleep(slice / 4);
        let begin = Moment::now(server, sends, clients);
        thread::sleep(slice);
        [begin, Moment::now(server, sends, clients)]
    })
}

impl Slice {
    fn of(processes: &[Vec<Turn>], tasks: usize, begin: Moment, end: Moment) -> Self {
        let turns = merge(processes);
        let window = [begin.at, end.at];
        let waits_of = processes.iter().map(|turns| {
            let waits = turns.iter().filter_map(|turn| waited(turn, window));
            let mut waits: Vec<f64> = waits.collect();
            waits.sort_by(f64::total_cmp);
            waits
        });
        let waits_of = waits_of.collect();
        let waits = turns
            .iter()
            .filter_map(|(_, turn)| Some((waited(turn, window)?, turn.failures)));
        let (mut waits, failures): (Vec<f64>, Vec<u32>) = waits.unzip();
        waits.sort_by(f64::total_cmp);
        let mut holds: Vec<_> = turns
            .iter()
            .filter_map(|(member, turn)| Some((*member, turn.inside?)))
            .collect();
        let [overlaps, most_inside] = crowd(&holds);
        let unanswered = holds.iter().filter(|(_, hold)| !hold.answered).count();
        holds.retain(|(_, hold)| (begin.at..end.at).contains(&hold.begin));
        Self {
            tasks,
            seconds: (end.at - begin.at) as f64 / 1e9,
            holds,
            waits,
            waits_of,
            failures: failures.iter().sum(),
            overlaps,
            most_inside,
            unanswered,
            scripts: end.scripts - begin.scripts,
            commands: end.commands - begin.commands,
            server: end.server.saturating_sub(begin.server),
            clients: end.clients.saturating_sub(begin.clients),
        }
    }

    /// A sentence about what went wrong, if something did.
    pub(crate) fn trouble(slices: &[Self], name: &str) -> Option<String> {
        let unanswered: usize = slices.iter().map(|slice| slice.unanswered).sum();
        let said = || format!("{unanswered} releases of {name} were not answered in time.");
        (unanswered > 0).then(said)
    }

    /// Per second.
    pub(crate) fn acquisitions(&self) -> f64 {
        self.holds.len() as f64 / self.seconds
    }

    /// Per second, to a different task.
    pub(crate) fn handoffs(&self) -> f64 {
        let pairs = self.holds.windows(2);
        pairs.filter(|pair| pair[0].0 != pair[1].0).count() as f64 / self.seconds
    }

    /// For how long nobody was inside, from the end of one hold to the beginning of the next, in
    /// milliseconds: the median.
    pub(crate) fn idle_p50(&self) -> f64 {
        let pairs = self.holds.windows(2);
        let gaps = pairs.map(|pair| ms(pair[1].1.begin.saturating_sub(pair[0].1.end)));
        let mut gaps: Vec<f64> = gaps.collect();
        gaps.sort_by(f64::total_cmp);
        quantile(&gaps, 0.5)
    }

    /// In milliseconds.
    pub(crate) fn mean_hold(&self) -> f64 {
        let held = self.holds.iter().map(|(_, hold)| ms(hold.end - hold.begin));
        held.sum::<f64>() / self.holds.len() as f64
    }

    /// In milliseconds.
    pub(crate) fn mean_wait(&self) -> f64 {
        self.waits.iter().sum::<f64>() / self.waits.len() as f64
    }

    /// In milliseconds.
    pub(crate) fn wait(&self, share: f64) -> f64 {
        quantile(&self.waits, share)
    }

    pub(crate) fn processes(&self) -> usize {
        self.waits_of.len()
    }

    /// The same of one process.
    pub(crate) fn wait_of(&self, process: usize, share: f64) -> f64 {
        quantile(&self.waits_of[process], share)
    }

    /// Of how often each task got in.
    pub(crate) fn fairness(&self) -> f64 {
        let mut members: Vec<Member> = self.holds.iter().map(|(member, _)| *member).collect();
        members.sort_unstable();
        let mut shares: Vec<f64> = members
            .chunk_by(|one, other| one == other)
            .map(|turns| turns.len() as f64)
            .collect();
        shares.resize(self.tasks, 0.0);
        jain(&shares)
    }

    /// For each acquisition, as all that follow.
    pub(crate) fn failures(&self) -> f64 {
        self.each(f64::from(self.failures))
    }

    pub(crate) fn scripts(&self) -> f64 {
        self.each(self.scripts as f64)
    }

    pub(crate) fn commands(&self) -> f64 {
        self.each(self.commands as f64)
    }

    /// In microseconds of the processor.
    pub(crate) fn server(&self) -> f64 {
        self.each(self.server.as_secs_f64() * 1e6)
    }

    /// In microseconds of the processor, of all processes.
    pub(crate) fn clients(&self) -> f64 {
        self.each(self.clients.as_secs_f64() * 1e6)
    }

    fn each(&self, of_all: f64) -> f64 {
        of_all / self.holds.len() as f64
    }
}

/// All turns of all processes; those that came to a hold in the order of its beginning.
fn merge(processes: &[Vec<Turn>]) -> Vec<(Member, Turn)> {
    let processes = processes.iter().enumerate();
    let mut turns: Vec<(Member, Turn)> = processes
        .flat_map(|(process, turns)| turns.iter().map(move |turn| ((process, turn.task), *turn)))
        .collect();
    turns.sort_by_key(|(_, turn)| turn.inside.map(|hold| hold.begin));
    turns
}

/// The milliseconds that a turn was waited for, if that ended within the window; what it had been
/// waited for so far if it was under way when the window closed; `None` if it lies outside.
fn waited(turn: &Turn, [open, close]: [u64; 2]) -> Option<f64> {
    let until = turn.inside.map_or(u64::MAX, |hold| hold.begin).min(close);
    (turn.asked < close && until >= open).then(|| ms(until - turn.asked))
}

/// How often somebody entered while another was inside, and how many were inside at most. The holds
/// are in the order of their beginning.
fn crowd(holds: &[(Member, Span)]) -> [u64; 2] {
    let mut overlaps = 0;
    let mut free = 0;
    for (_, hold) in holds {
        overlaps += u64::from(hold.begin < free);
        free = free.max(hold.end);
    }
    let holds: Vec<Hold> = holds
        .iter()
        .map(|(_, hold)| Hold {
            asked: hold.begin,
            acquired: hold.begin,
            ended: hold.end,
            fence: 0,
            weight: 1,
        })
        .collect();
    [overlaps, most_inside(&holds)]
}

fn ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Times are in milliseconds.
    fn turn(task: u32, asked: u64, inside: Option<(u64, u64)>) -> Turn {
        Turn {
            task,
            asked: asked * MS,
            failures: 1,
            inside: inside.map(|(begin, end)| Span {
                begin: begin * MS,
                end: end * MS,
                answered: true,
            }),
        }
    }

    fn slice(processes: &[Vec<Turn>], tasks_each: u32, window: [u64; 2]) -> Slice {
        let [begin, end] = window.map(|at| Moment {
            at: at * MS,
            scripts: at,
            commands: 2 * at,
            server: Duration::from_micros(at),
            clients: Duration::from_micros(at),
        });
        Slice::of(processes, processes.len() * tasks_each as usize, begin, end)
    }

    #[test]
    fn histories_of_processes_are_one_history_in_the_order_of_time() {
        let one = vec![turn(0, 0, Some((0, 10))), turn(0, 10, Some((35, 45)))];
        let other = vec![
            turn(0, 0, Some((12, 20))),
            turn(0, 20, Some((23, 30))),
            turn(0, 30, None),
        ];
        let slice = slice(&[one, other], 1, [0, 1_000]);
        assert_eq!(slice.acquisitions(), 4.0);
        // The second process' two holds in a row are none.
        assert_eq!(slice.handoffs(), 2.0);
        assert_eq!(slice.idle_p50(), 3.0);
        assert_eq!(slice.mean_hold(), 8.75);
        assert_eq!([slice.overlaps, slice.most_inside], [0, 1]);
        assert_eq!(slice.failures(), 1.25);
        assert_eq!(slice.scripts(), 250.0);
    }

    #[test]
    fn the_first_hold_of_each_process_is_of_another_task() {
        let slice = slice(
            &[
                vec![turn(0, 0, Some((0, 1)))],
                vec![turn(0, 0, Some((2, 3)))],
            ],
            1,
            [0, 1_000],
        );
        assert_eq!(slice.handoffs(), 1.0);
    }

    #[test]
    fn a_wait_counts_as_long_as_it_was_seen() {
        let window = [100 * MS, 200 * MS];
        assert_eq!(waited(&turn(0, 50, Some((150, 160))), window), Some(100.0));
        // Under way when it closed, whether it came to its end or not.
        assert_eq!(waited(&turn(0, 120, None), window), Some(80.0));
        assert_eq!(waited(&turn(0, 120, Some((300, 301))), window), Some(80.0));
        // Over before it opened, and begun after it closed.
        assert_eq!(waited(&turn(0, 50, Some((90, 95))), window), None);
        assert_eq!(waited(&turn(0, 210, Some((220, 230))), window), None);
        assert_eq!(waited(&turn(0, 210, None), window), None);
    }

    #[test]
    fn who_starves_shows_in_waits_and_in_fairness() {
        let takes_all = (0..98)
            .map(|time| turn(0, time, Some((time, time))))
            .collect();
        let slice = slice(&[takes_all, vec![turn(0, 0, None)]], 2, [0, 100]);
        assert_eq!(slice.wait(0.5), 0.0);
        assert_eq!(slice.wait(1.0), 100.0);
        // Four tasks, of which one took all.
        assert_eq!(slice.fairness(), 0.25);
    }

    #[test]
    fn overlaps_are_seen_in_and_out_of_the_slice() {
        let long = vec![turn(0, 0, Some((0, 10)))];
        let within = vec![turn(0, 0, Some((2, 3))), turn(0, 3, Some((5, 12)))];
        let slice = slice(&[long, within], 1, [20, 30]);
        assert_eq!([slice.overlaps, slice.most_inside], [2, 2]);
    }
}
