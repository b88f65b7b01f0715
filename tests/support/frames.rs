//! Where one RESP value of a server's stream ends, and whether it is a published message.

/// The length of the first value in `bytes`; `None` if it is not complete.
pub(super) fn first_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let number = || {
        std::str::from_utf8(&bytes[1..line])
            .ok()?
            .parse::<i64>()
            .ok()
    };
    let head = line + 2;
    let elements = match bytes[0] {
        b'$' | b'=' | b'!' => {
            let Ok(length) = usize::try_from(number()?) else {
                // A nil.
                return Some(head);
            };
            let whole = head + length + 2;
            return (bytes.len() >= whole).then_some(whole);
        }
        b'*' | b'>' | b'~' => number()?,
        b'%' => 2 * number()?,
        _ => return Some(head),
    };
    let mut length = head;
    for _ in 0..elements {
        length += first_length(&bytes[length..])?;
    }
    Some(length)
}

/// Whether a whole value is a message of a subscribed channel.
pub(super) fn is_message(value: &[u8]) -> bool {
    let mut lines = value.split(|byte| *byte == b'\n');
    let kind = lines.nth(2).unwrap_or_default();
    matches!(value.first(), Some(b'*' | b'>')) && (kind == b"message\r" || kind == b"smessage\r")
}
