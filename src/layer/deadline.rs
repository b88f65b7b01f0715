//! How long the caller of a request waits by its own account.

use std::time::Duration;

use http::request::Parts;

/// The time-out that a gRPC request carries in its `grpc-timeout` header, as the gRPC protocol over
/// HTTP/2 defines it: up to 8 digits and a unit. `None` if it has none that can be read.
///
/// For [`deadline`](super::MutexLayer::deadline).
#[must_use]
pub fn grpc_timeout(parts: &Parts) -> Option<Duration> {
    let text = parts.headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn timeout(value: &str) -> Option<Duration> {
        let request = Request::get("/").header("grpc-timeout", value);
        let (parts, ()) = request.body(()).expect("a valid request").into_parts();
        grpc_timeout(&parts)
    }

    #[test]
    fn each_unit_is_understood() {
        for (text, duration) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("100m", Duration::from_millis(100)),
            ("5u", Duration::from_micros(5)),
            ("99999999n", Duration::from_nanos(99_999_999)),
            ("0m", Duration::ZERO),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ] {
            assert_eq!(timeout(text), Some(duration), "{text}");
        }
    }

    #[test]
    fn garbage_is_no_deadline() {
        for text in [
            "",
            "S",
            "1",
            "1s",
            "-1S",
            "+1S",
            "1.5S",
            "123456789m",
            "1 S",
            " 1S",
            "\u{b5}",
        ] {
            assert_eq!(timeout(text), None, "{text}");
        }
    }
}
