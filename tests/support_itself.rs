//! The tests' own tools do what they say: the server, the proxy, the judges of a history.

mod support;

mod history {
    use super::support::history::{
        all_granted, cap_kept, fences_follow_holds, fences_rise, most_inside, order_kept,
    };
    use super::support::{History, Hold, Wait};

    fn hold(asked: u64, acquired: u64, ended: u64, fence: u64, weight: u32) -> Hold {
        Hold {
            asked,
            acquired,
            ended,
            fence,
            weight,
        }
    }

    fn wait(asked: u64, queued: u64, fence: Option<u64>) -> Wait {
        Wait {
            asked,
            queued,
            weight: 1,
            fence,
        }
    }

    #[test]
    fn holds_that_meet_are_no_overlap_and_holds_that_overlap_are_seen() {
        let good = [
            hold(0, 0, 10, 1, 1),
            hold(0, 10, 20, 2, 1),
            hold(5, 20, 30, 3, 1),
        ];
        assert_eq!(cap_kept(&good, 1), Ok(()));
        let bad = [hold(0, 0, 11, 1, 1), hold(0, 10, 20, 2, 1)];
        assert!(cap_kept(&bad, 1).is_err());
        assert_eq!(cap_kept(&bad, 2), Ok(()));
        assert_eq!(most_inside(&[]), 0);
    }

    #[test]
    fn weights_count_towards_the_cap() {
        let holds = [
            hold(0, 0, 10, 1, 2),
            hold(0, 5, 20, 2, 1),
            hold(0, 9, 12, 3, 2),
        ];
        assert_eq!(most_inside(&holds), 5);
        assert!(cap_kept(&holds, 4).is_err());
        assert_eq!(cap_kept(&holds, 5), Ok(()));
    }

    #[test]
    fn a_hold_that_was_over_before_it_was_known_counts_for_nothing() {
        assert_eq!(
            most_inside(&[hold(0, 10, 10, 1, 1), hold(0, 12, 10, 2, 1)]),
            0
        );
    }

    #[test]
    fn a_fence_given_twice_is_seen() {
        assert!(fences_rise(&[hold(0, 1, 2, 7, 1), hold(0, 3, 4, 7, 1)]).is_err());
    }

    #[test]
    fn a_fence_that_falls_is_seen_and_one_of_an_overlapping_acquire_is_not_blamed() {
        // The second was asked for before the first was acquired: the server may have served it
        // first.
        let crossing = [hold(0, 10, 20, 2, 1), hold(9, 12, 20, 1, 1)];
        assert_eq!(fences_rise(&crossing), Ok(()));
        assert!(fences_follow_holds(&crossing).is_err());
        let falling = [hold(0, 10, 20, 2, 1), hold(11, 12, 20, 1, 1)];
        assert!(fences_rise(&falling).is_err());
        let rising = [hold(0, 10, 20, 1, 1), hold(11, 12, 20, 2, 1)];
        assert_eq!(fences_rise(&rising), Ok(()));
        assert_eq!(fences_follow_holds(&rising), Ok(()));
    }

    #[test]
    fn overtaking_is_seen_within_one_weight_only() {
        let overtaken = [wait(0, 10, Some(2)), wait(11, 20, Some(1))];
        assert!(order_kept(&overtaken).is_err());
        let mut other_weight = overtaken;
        other_weight[1].weight = 2;
        assert_eq!(order_kept(&other_weight), Ok(()));
        let at_once = [wait(0, 10, Some(2)), wait(9, 20, Some(1))];
        assert_eq!(order_kept(&at_once), Ok(()));
        let gave_up = [wait(0, 10, None), wait(11, 20, Some(1))];
        assert_eq!(order_kept(&gave_up), Ok(()));
        assert!(all_granted(&gave_up).is_err());
        assert_eq!(all_granted(&at_once), Ok(()));
    }

    #[test]
    fn one_overtaker_among_many_is_seen() {
        let mut waits: Vec<Wait> = (0..1000)
            .map(|n| wait(10 * n, 10 * n + 5, Some(n + 1)))
            .collect();
        assert_eq!(order_kept(&waits), Ok(()));
        waits[500].fence = Some(2000);
        assert!(order_kept(&waits).is_err());
    }

    #[test]
    #[should_panic(expected = "2 inside at once, of 1")]
    fn a_recorded_overlap_fails_the_test() {
        let history = History::default();
        history.held(hold(0, 0, 10, 1, 1));
        history.held(hold(0, 5, 12, 2, 1));
        history.assert_sound(1);
    }
}

mod poll {
    use super::support::{poll_k_times, poll_k_times_and_wake};

    async fn three_polls() -> &'static str {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        "done"
    }

    #[tokio::test]
    async fn a_future_that_needs_more_polls_is_dropped() {
        for k in 0..3 {
            assert_eq!(poll_k_times(three_polls(), k).await, None);
            assert_eq!(poll_k_times_and_wake(three_polls(), k).await, None);
        }
        assert_eq!(poll_k_times(three_polls(), 3).await, Some("done"));
        assert_eq!(poll_k_times_and_wake(three_polls(), 3).await, Some("done"));
    }
}

mod proxy {
    use std::io::{Read, Write};
    use std::net::TcpStream as Plain;
    use std::time::Duration;

    use super::support::{Flow, Mode, Proxy, Server, wait_for};

    const SOON: Duration = Duration::from_secs(10);
    /// Long enough to show that nothing comes.
    const WHILE: Duration = Duration::from_millis(100);

    fn connect(proxy: &Proxy) -> Plain {
        let stream = Plain::connect(("127.0.0.1", proxy.port())).expect("the proxy listens");
        stream
            .set_read_timeout(Some(SOON))
            .expect("a time-out above zero");
        stream
    }

    fn send(stream: &mut Plain, line: &str) {
        stream.write_all(line.as_bytes()).expect("the proxy reads");
    }

    /// What arrives, or how the reading ended.
    fn receive(stream: &mut Plain) -> Result<String, std::io::ErrorKind> {
        let mut buffer = [0; 256];
        let length = stream.read(&mut buffer).map_err(|error| error.kind())?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    fn hears_nothing(stream: &mut Plain) -> bool {
        stream
            .set_read_timeout(Some(WHILE))
            .expect("a time-out above zero");
        let heard = receive(stream);
        stream
            .set_read_timeout(Some(SOON))
            .expect("a time-out above zero");
        heard == Err(std::io::ErrorKind::WouldBlock)
    }

    #[tokio::test]
    async fn replies_are_eaten_though_the_request_runs_and_the_connection_ends_after_it() {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let mut client = connect(&proxy);
        send(&mut client, "PING\r\n");
        assert_eq!(receive(&mut client).as_deref(), Ok("+PONG\r\n"));
        proxy.set(Mode::EatReplies);
        send(&mut client, "SET a 1\r\n");
        wait_for("the request runs", SOON, async || {
            server.keys_with("a").await.len() == 1
        })
        .await;
        assert!(hears_nothing(&mut client));
        proxy.set(Mode::Pass);
        assert_eq!(
            receive(&mut client),
            Err(std::io::ErrorKind::ConnectionReset)
        );
        let mut client = connect(&proxy);
        send(&mut client, "PING\r\n");
        assert_eq!(receive(&mut client).as_deref(), Ok("+PONG\r\n"));
    }

    #[tokio::test]
    async fn held_requests_run_late_and_eaten_ones_never() {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let mut client = connect(&proxy);
        proxy.set(Mode::HoldRequests);
        send(&mut client, "SET a 1\r\n");
        assert!(hears_nothing(&mut client));
        assert!(server.keys_with("a").await.is_empty());
        proxy.set(Mode::Pass);
        assert_eq!(receive(&mut client).as_deref(), Ok("+OK\r\n"));
        proxy.set(Mode::BlackHole);
        send(&mut client, "SET b 1\r\n");
        assert!(hears_nothing(&mut client));
        proxy.set(Mode::Pass);
        assert_eq!(
            receive(&mut client),
            Err(std::io::ErrorKind::ConnectionReset)
        );
        assert!(server.keys_with("b").await.is_empty());
    }

    #[tokio::test]
    async fn what_was_sent_before_a_parting_is_overtaken() {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let mut client = connect(&proxy);
        proxy.set(Mode::Delay(10 * WHILE));
        send(&mut client, "SET a 1\r\n");
        assert!(hears_nothing(&mut client));
        proxy.part();
        assert_eq!(receive(&mut client).as_deref(), Ok(""));
        proxy.set(Mode::Pass);
        let mut next = connect(&proxy);
        send(&mut next, "EXISTS a\r\n");
        assert_eq!(receive(&mut next).as_deref(), Ok(":0\r\n"));
        wait_for("the earlier request runs", SOON, async || {
            !server.keys_with("a").await.is_empty()
        })
        .await;
    }

    #[test]
    fn delayed_bytes_arrive_late_and_in_order() {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let mut client = connect(&proxy);
        proxy.set(Mode::Delay(WHILE));
        let begun = std::time::Instant::now();
        send(&mut client, "ECHO a\r\n");
        assert_eq!(receive(&mut client).as_deref(), Ok("$1\r\na\r\n"));
        assert!(begun.elapsed() >= 2 * WHILE);
    }

    #[test]
    fn throttled_bytes_arrive_bit_by_bit_and_whole() {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let mut client = connect(&proxy);
        let text = "x".repeat(10_000);
        proxy.set(Mode::Flows {
            requests: Flow::Pass,
            replies: Flow::Throttle(20_000),
        });
        let begun = std::time::Instant::now();
        send(&mut client, &format!("ECHO {text}\r\n"));
        let whole = format!("$10000\r\n{text}\r\n");
        let mut heard = String::new();
        while heard.len() < whole.len() {
            heard += &receive(&mut client).expect("it goes on");
        }
        assert_eq!(heard, whole);
        assert!(begun.elapsed() >= 4 * WHILE, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_cut_resets_and_a_half_open_connection_stays_silent() {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let mut client = connect(&proxy);
        send(&mut client, "PING\r\n");
        assert_eq!(receive(&mut client).as_deref(), Ok("+PONG\r\n"));
        proxy.cut();
        assert_eq!(
            receive(&mut client),
            Err(std::io::ErrorKind::ConnectionReset)
        );

        let mut client = connect(&proxy);
        send(&mut client, "PING\r\n");
        assert_eq!(receive(&mut client).as_deref(), Ok("+PONG\r\n"));
        proxy.set(Mode::HalfOpen);
        send(&mut client, "PING\r\n");
        assert!(hears_nothing(&mut client));
        proxy.set(Mode::Pass);
        send(&mut client, "PING\r\n");
        assert!(hears_nothing(&mut client));
        drop(client);
        wait_for("the proxy forgets it", SOON, async || {
            proxy.connections() == 0
        })
        .await;
    }

    #[test]
    fn messages_are_eaten_out_of_a_stream_that_goes_on() {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let mut subscriber = connect(&proxy);
        send(&mut subscriber, "SUBSCRIBE inbox\r\n");
        assert!(receive(&mut subscriber).is_ok_and(|reply| reply.contains("subscribe")));
        let mut client = connect(&proxy);
        for (mode, text) in [
            (Mode::Pass, "one"),
            (Mode::EatMessages, "two"),
            (Mode::Pass, "three"),
        ] {
            proxy.set(mode);
            send(&mut client, &format!("PUBLISH inbox {text}\r\n"));
            assert_eq!(receive(&mut client).as_deref(), Ok(":1\r\n"));
            if mode == Mode::Pass {
                assert!(receive(&mut subscriber).is_ok_and(|push| push.contains(text)));
            } else {
                assert!(hears_nothing(&mut subscriber));
            }
        }
        proxy.set_subscribers(Mode::EatMessages);
        send(&mut subscriber, "PING\r\n");
        assert!(receive(&mut subscriber).is_ok_and(|reply| reply.contains("pong")));
    }

    #[test]
    fn subscribers_have_a_mode_of_their_own() {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let mut subscriber = connect(&proxy);
        send(&mut subscriber, "SUBSCRIBE inbox\r\n");
        assert!(receive(&mut subscriber).is_ok_and(|reply| reply.contains("subscribe")));
        let mut client = connect(&proxy);
        proxy.set_subscribers(Mode::HoldReplies);
        send(&mut client, "PUBLISH inbox hello\r\n");
        assert_eq!(receive(&mut client).as_deref(), Ok(":1\r\n"));
        assert!(hears_nothing(&mut subscriber));
        proxy.set_subscribers(Mode::Pass);
        assert!(receive(&mut subscriber).is_ok_and(|push| push.contains("hello")));
    }
}

mod server {
    use std::time::Duration;

    use super::support::{Server, poll_k_times};

    #[tokio::test]
    async fn a_server_answers_counts_restarts_empty_and_dies_with_its_owner() {
        let server = Server::start();
        let pid = server.pid();
        server.command(&["SET", "test:a", "1"]).await;
        assert_eq!(server.keys_with("test:").await, ["test:a"]);
        server
            .command(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "test:a"])
            .await;
        assert_eq!(server.script_calls().await, 1);
        server.restart();
        server.wait_until_no_keys("test:", Duration::ZERO).await;
        assert_ne!(server.pid(), pid);
        let last = server.pid();
        drop(server);
        assert!(!std::path::Path::new(&format!("/proc/{last}")).exists());
    }

    #[tokio::test]
    async fn a_frozen_server_runs_what_was_sent_when_it_is_thawed() {
        let server = Server::start();
        server.freeze();
        let mut sent = std::pin::pin!(server.command(&["SET", "a", "1"]));
        assert_eq!(poll_k_times(&mut sent, 1).await, None);
        server.thaw();
        sent.await;
        assert_eq!(server.keys_with("").await, ["a"]);
    }
}
