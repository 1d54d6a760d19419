//! Slots of keys, and which node has them: as the specification of Redis Cluster says.

use redis::{FromRedisValue, Value};

use super::Host;

/// How many slots there are.
const SLOTS: u16 = 16_384;

/// The slot of a key: that of its tag, the part in the first braces, where there is one.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16 with the polynomial 0x1021 and nothing else (XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(
            crc ^ (u16::from(*byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    })
}

/// Slots that lie one after the other, and the master that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned<N> {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) node: N,
}

/// What a node at `asked` answers to `CLUSTER SLOTS`, in order; `None` where it is not an answer to that. Where a node
/// doesn't know its own host's name, it is the one that was asked.
pub(crate) fn read(answer: &Value, asked: &str) -> Option<Vec<Owned<Host>>> {
    let Value::Array(rows) = answer else { return None };
    let mut owned = rows.iter().map(|row| read_row(row, asked)).collect::<Option<Vec<_>>>()?;
    owned.sort_by_key(|owned| owned.first);
    Some(owned)
}

fn read_row(row: &Value, asked: &str) -> Option<Owned<Host>> {
    let Value::Array(parts) = row else { return None };
    let number = |value: &Value| u16::from_redis_value_ref(value).ok();
    let (first, last) = (number(parts.first()?)?, number(parts.get(1)?)?);
    let Value::Array(master) = parts.get(2)? else { return None };
    let host: Option<String> = Option::from_redis_value_ref(master.first()?).ok()?;
    let host = host.filter(|host| !host.is_empty() && host != "?").unwrap_or_else(|| asked.to_owned());
    Some(Owned { first, last, node: (host, number(master.get(1)?)?) })
}

/// The node that has a slot.
pub(crate) fn owner<N>(owned: &[Owned<N>], slot: u16) -> Option<&N> {
    let place = owned.partition_point(|owned| owned.last < slot);
    owned.get(place).filter(|owned| owned.first <= slot).map(|owned| &owned.node)
}

/// Whether each slot has a node.
pub(crate) fn is_whole<N>(owned: &[Owned<N>]) -> bool {
    owned.iter().map(|owned| u32::from(owned.last) + 1 - u32::from(owned.first)).sum::<u32>() == u32::from(SLOTS)
}

/// Where `MOVED` or `ASK` sends: `3999 127.0.0.1:6381`.
pub(crate) fn redirected(detail: &str, asked: &str) -> Option<Host> {
    let (host, port) = detail.split_ascii_whitespace().nth(1)?.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() || host == "?" { asked } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // As `CLUSTER KEYSLOT` of a server answers.
        for (key, expected) in [
            ("foo", 12_182),
            ("{foo}.bar", 12_182),
            ("foo{}", 5_542),
            ("foo{{bar}}zap", 4_015),
            ("timertask:1:{ns:00}", 15_999),
            ("timertask:1:{ns:ff}:ids", 8_277),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn row(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    #[test]
    fn an_answer_says_who_has_which_slot() {
        let rows = vec![row(9_000, 16_383, text("b"), 2), row(0, 8_000, Value::Nil, 1), row(8_001, 8_001, text(""), 3)];
        let owned = read(&Value::Array(rows), "a").unwrap();
        assert_eq!(owner(&owned, 0), Some(&("a".into(), 1)));
        assert_eq!(owner(&owned, 8_000), Some(&("a".into(), 1)));
        assert_eq!(owner(&owned, 8_001), Some(&("a".into(), 3)));
        assert_eq!(owner(&owned, 8_500), None);
        assert_eq!(owner(&owned, 16_383), Some(&("b".into(), 2)));
        assert!(!is_whole(&owned) && is_whole(&[Owned { first: 0, last: 16_383, node: () }]));
        for nonsense in [Value::Nil, Value::Array(vec![Value::Int(1)]), Value::Array(vec![Value::Array(vec![])])] {
            assert_eq!(read(&nonsense, "a"), None);
        }
    }

    #[test]
    fn a_redirection_names_a_node() {
        assert_eq!(redirected("3999 127.0.0.1:6381", "a"), Some(("127.0.0.1".into(), 6381)));
        assert_eq!(redirected("3999 ::1:6381", "a"), Some(("::1".into(), 6381)));
        assert_eq!(redirected("3999 :6381", "a"), Some(("a".into(), 6381)));
        for nonsense in ["", "3999", "3999 a", "3999 a:x", "3999 a:70000"] {
            assert_eq!(redirected(nonsense, "a"), None, "{nonsense}");
        }
    }
}
