//! A dataflow of a release of timely that captures a stream, or replays one, for tests of recordings.
//!
//!     live capture KIND PLACE [-w N]
//!     live replay KIND PLACE RECORDINGS [-w N]
//!
//! KIND is the type of its times: `grid` Product<u64,u64>, `pairs` (u64,u64), `line` u64. PLACE is a
//! folder with a file per worker, or a port: worker i uses the port after it by i. What was sent, and
//! what a worker of a replay saw, is printed as lines of JSON.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use timely::dataflow::operators::capture::{Capture, EventReader, EventWriter, Replay};
use timely::dataflow::operators::generic::source;
use timely::dataflow::operators::{Exchange, Inspect, Leave};
use timely::dataflow::{Scope, Stream};
use timely::order::Product;
use timely::progress::timestamp::Refines;
use timely::progress::Timestamp;
use timely::worker::Worker;
use timely::ExchangeData;

const ROUNDS: u64 = 40;

/// A time of two numbers, in one of timely's orders.
trait Grid: Timestamp + Refines<u64> + ExchangeData {
    /// What is still held in a round: that of a later one is greater.
    fn held(round: u64) -> Self;
    /// A time at which the round may send: some steps after what it holds.
    fn later(round: u64, outer: u64, inner: u64) -> Self;
}

impl Grid for Product<u64, u64> {
    fn held(round: u64) -> Self {
        Product::new(round / 4, round / 8)
    }

    fn later(round: u64, outer: u64, inner: u64) -> Self {
        Product::new(round / 4 + outer, round / 8 + inner)
    }
}

impl Grid for (u64, u64) {
    fn held(round: u64) -> Self {
        (round / 4, round % 4)
    }

    fn later(round: u64, outer: u64, inner: u64) -> Self {
        // After a step of the first number the second may be less.
        (round / 4 + outer, if outer > 0 { inner } else { round % 4 + inner })
    }
}

/// A time as JSON.
trait Text {
    fn text(&self) -> String;
}

impl Text for u64 {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Text for Product<u64, u64> {
    fn text(&self) -> String {
        format!("[{},{}]", self.outer, self.inner)
    }
}

impl Text for (u64, u64) {
    fn text(&self) -> String {
        format!("[{},{}]", self.0, self.1)
    }
}

fn listed<'a, T: Text + 'a>(times: impl IntoIterator<Item = &'a T>) -> String {
    let texts: Vec<String> = times.into_iter().map(Text::text).collect();
    format!("[{}]", texts.join(","))
}

#[cfg(feature = "stamps")]
type Under<T> = timely::progress::Stamp<T>;
#[cfg(feature = "stamps")]
fn elements<T: Timestamp>(stamp: &Under<T>) -> Vec<T> {
    stamp.iter().cloned().collect()
}

#[cfg(not(feature = "stamps"))]
type Under<T> = T;
#[cfg(not(feature = "stamps"))]
fn elements<T: Timestamp>(time: &Under<T>) -> Vec<T> {
    vec![time.clone()]
}

/// Records that are sent while the times before them are still held, and more of them at each round.
fn sent<'scope, T: Grid + Text>(scope: Scope<'scope, T>) -> Stream<'scope, T, Vec<u64>> {
    let index = scope.index() as u64;
    let again = scope.clone();
    source(scope, "Source", move |capability, info| {
        let activator = again.activator_for(info.address);
        let mut held = Some(capability);
        let mut round = 0u64;
        let mut seed = 7 + index;
        move |output| {
            let Some(capability) = held.as_mut() else { return };
            let mut drawn = |below: u64| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 33) % below
            };
            capability.downgrade(&T::held(round));
            for number in 0..drawn(4) {
                let record = 1000 * (round + 1) + 10 * number + index;
                let first = capability.delayed(&T::later(round, drawn(3), drawn(4)));
                #[cfg(feature = "stamps")]
                {
                    let mut under = vec![first];
                    for _ in 0..drawn(3) {
                        under.push(capability.delayed(&T::later(round, drawn(3), drawn(4))));
                    }
                    let set = timely::dataflow::operators::CapabilitySet::from(under);
                    output.session(&set).give(record);
                }
                #[cfg(not(feature = "stamps"))]
                output.session(&first).give(record);
            }
            round += 1;
            if round == ROUNDS {
                held = None;
            }
            activator.activate();
        }
    })
}

fn shown<'scope, T: Timestamp + Text>(
    stream: Stream<'scope, T, Vec<u64>>,
    frontiers: bool,
) -> Stream<'scope, T, Vec<u64>> {
    let worker = stream.scope().index();
    stream.inspect_core(move |event| match event {
        Ok((under, records)) => {
            for record in records {
                println!("{{\"stamp\":{},\"record\":{record}}}", listed(&elements(under)));
            }
        }
        Err(frontier) if frontiers => {
            println!("{{\"worker\":{worker},\"frontier\":{}}}", listed(frontier));
        }
        Err(_) => (),
    })
}

fn writer(place: &str, index: usize) -> Box<dyn Write> {
    match place.parse::<u16>() {
        Ok(port) => Box::new(TcpStream::connect(("127.0.0.1", port + index as u16)).unwrap()),
        Err(_) => Box::new(File::create(format!("{place}/worker-{index}.bin")).unwrap()),
    }
}

fn readers(place: &str, recordings: usize, worker: &Worker) -> Vec<Box<dyn Read>> {
    let own = (0..recordings).filter(|i| i % worker.peers() == worker.index());
    match place.parse::<u16>() {
        Ok(port) => {
            let bound: Vec<TcpListener> = own
                .map(|i| TcpListener::bind(("127.0.0.1", port + i as u16)).unwrap())
                .collect();
            bound
                .into_iter()
                .map(|listener| {
                    let (stream, _) = listener.accept().unwrap();
                    stream.set_nonblocking(true).unwrap();
                    Box::new(stream) as Box<dyn Read>
                })
                .collect()
        }
        Err(_) => own
            .map(|i| Box::new(File::open(format!("{place}/worker-{i}.bin")).unwrap()) as Box<dyn Read>)
            .collect(),
    }
}

fn capture_grid<T: Grid + Text>(worker: &mut Worker, place: &str) {
    let target = writer(place, worker.index());
    worker.dataflow::<u64, _, _>(|scope| {
        scope.scoped::<T, _, _>("Inside", |inner| {
            shown(sent(inner), false).exchange(|x| x / 10).capture_into(EventWriter::new(target));
        })
    });
}

fn capture_line(worker: &mut Worker, place: &str) {
    let target = writer(place, worker.index());
    worker.dataflow::<u64, _, _>(|scope| {
        let outer = scope.clone();
        let left = scope.scoped::<Product<u64, u64>, _, _>("Inside", |inner| sent(inner).leave(outer));
        shown(left, false).exchange(|x| x / 10).capture_into(EventWriter::new(target));
    });
}

fn replay_grid<T: Grid + Text>(worker: &mut Worker, place: &str, recordings: usize) {
    let sources: Vec<EventReader<T, Vec<u64>, _>> =
        readers(place, recordings, worker).into_iter().map(EventReader::new).collect();
    worker.dataflow::<u64, _, _>(|scope| {
        scope.scoped::<T, _, _>("Inside", |inner| {
            shown(sources.replay_into(inner), true);
        })
    });
}

fn replay_line(worker: &mut Worker, place: &str, recordings: usize) {
    let sources: Vec<EventReader<u64, Vec<u64>, _>> =
        readers(place, recordings, worker).into_iter().map(EventReader::new).collect();
    worker.dataflow::<u64, _, _>(|scope| {
        shown(sources.replay_into(scope), true);
    });
}

fn main() {
    let given: Vec<String> = std::env::args().collect();
    let known = if given[1] == "capture" { 4 } else { 5 };
    timely::execute_from_args(given.clone().into_iter().skip(known), move |worker| {
        let (what, kind, place) = (given[1].as_str(), given[2].as_str(), given[3].as_str());
        let recordings = if what == "replay" { given[4].parse().unwrap() } else { 0 };
        match (what, kind) {
            ("capture", "grid") => capture_grid::<Product<u64, u64>>(worker, place),
            ("capture", "pairs") => capture_grid::<(u64, u64)>(worker, place),
            ("capture", "line") => capture_line(worker, place),
            ("replay", "grid") => replay_grid::<Product<u64, u64>>(worker, place, recordings),
            ("replay", "pairs") => replay_grid::<(u64, u64)>(worker, place, recordings),
            ("replay", "line") => replay_line(worker, place, recordings),
            _ => panic!("not a kind of times: {kind}"),
        }
    })
    .unwrap();
}
