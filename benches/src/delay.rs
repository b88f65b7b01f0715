//! A network that takes its time: every byte arrives later by the same delay, in both directions.
//!
//! On threads of its own, since a runtime's timers are coarser than the delays in question.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Starts it in front of the server on `port`; gives the address to connect to. It lasts as long as
/// the process.
pub(crate) fn in_front_of(port: u16, one_way: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback interface");
    let address = listener.local_addr().expect("a bound address");
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let server = SocketAddr::from(([127, 0, 0, 1], port));
            let server = TcpStream::connect(server).expect("the server listens");
            for side in [&client, &server] {
                side.set_nodelay(true).expect("a TCP connection");
            }
            let [to_server, to_client] = [&server, &client].map(|side| side.try_clone());
            carry(client, to_server.expect("a socket"), one_way);
            carry(server, to_client.expect("a socket"), one_way);
        }
    });
    format!("redis://{address}/")
}

fn carry(from: TcpStream, to: TcpStream, one_way: Duration) {
    let (sender, receiver) = channel();
    thread::spawn(move || read(from, &sender, one_way));
    thread::spawn(move || write(&receiver, to));
}

fn read(mut from: TcpStream, sender: &Sender<(Instant, Vec<u8>)>, one_way: Duration) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let due = Instant::now() + one_way;
        if sender.send((due, buffer[..length].to_vec())).is_err() {
            break;
        }
    }
}

fn write(receiver: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    while let Ok((due, bytes)) = receiver.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    // The one side has closed: so does the other.
    let _ = to.shutdown(Shutdown::Both);
}
