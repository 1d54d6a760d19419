//! `timertask next`, by running it.

#![expect(clippy::unwrap_used, reason = "tests, and what helps them")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_timertask"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // It may answer while it still reads, or end without reading.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn ok(arguments: &[&str]) -> String {
    let output = run(arguments, b"");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn rows(arguments: &[&str], input: &[u8]) -> Vec<Value> {
    let output = run(&[&["next", "--jsonl"], arguments].concat(), input);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const SPRING: [&str; 6] = ["next", "--tz", "Europe/Berlin", "--from", "2026-03-27T12:00:00Z", "-n3"];
const AUTUMN: [&str; 6] = ["next", "--tz", "Europe/Berlin", "--from", "2026-10-24T12:00:00Z", "-n3"];

#[test]
fn instants_in_zone_and_utc_with_notes() {
    let shown = ok(&[&SPRING[..], &["30 2 * * *"]].concat());
    assert!(include_str!("../README.md").contains(&shown), "the README shows this");
    assert_eq!(
        shown,
        "2026-03-28T02:30:00+01:00  2026-03-28T01:30:00Z\n\
         2026-03-29T03:00:00+02:00  2026-03-29T01:00:00Z  gap: shifted from 2026-03-29T02:30:00\n\
         2026-03-30T02:30:00+02:00  2026-03-30T00:30:00Z\n"
    );
    assert_eq!(
        ok(&[&SPRING[..], &["--dst", "cron", "0,30 2 * * *"]].concat()),
        "2026-03-28T02:00:00+01:00  2026-03-28T01:00:00Z\n\
         2026-03-28T02:30:00+01:00  2026-03-28T01:30:00Z\n\
         2026-03-30T02:00:00+02:00  2026-03-30T00:00:00Z  gap: 2 skipped before, from 2026-03-29T02:00:00\n"
    );
    assert_eq!(
        ok(&[&AUTUMN[..], &["--dst", "skip+both", "30 2 * * *"]].concat()),
        "2026-10-25T02:30:00+02:00  2026-10-25T00:30:00Z\n\
         2026-10-25T02:30:00+01:00  2026-10-25T01:30:00Z  fold: second time, first at 2026-10-25T00:30:00Z\n\
         2026-10-26T02:30:00+01:00  2026-10-26T01:30:00Z\n"
    );
}

#[test]
fn json_says_the_same() {
    let read = |arguments: &[&[&str]]| serde_json::from_str::<Value>(&ok(&arguments.concat())).unwrap();
    let spring = read(&[&SPRING, &["--json", "30 2 * * *"]]);
    assert_eq!(spring["canonical"], "CRON_TZ=Europe/Berlin 30 2 * * *");
    assert_eq!(spring["expr"], "30 2 * * *");
    assert_eq!((&spring["tz"], &spring["dst"]), (&json!("Europe/Berlin"), &json!("auto")));
    assert_eq!(
        spring["next"][1],
        json!({
            "local": "2026-03-29T03:00:00+02:00",
            "utc": "2026-03-29T01:00:00Z",
            "shifted_from": "2026-03-29T02:30:00",
        })
    );
    let skipped = read(&[&SPRING, &["--json", "--dst=cron", "30 2 * * *"]]);
    assert_eq!(skipped["next"][1]["skipped_before"], json!({ "count": 1, "first": "2026-03-29T02:30:00" }));
    let autumn = read(&[&AUTUMN, &["--json", "--dst=cron", "30 2 * * *"]]);
    assert_eq!(autumn["next"][1]["repeats"], "2026-10-25T00:30:00Z");
}

#[test]
fn rows_are_answered_one_by_one_and_bad_ones_stop_nothing() {
    let megabyte = json!({ "id": "long", "expr": "*".repeat(1 << 20) }).to_string();
    let lines: Vec<Vec<u8>> = vec![
        br#"{"id":1,"expr":"0 3 * * *","tz":"Asia/Tokyo","from":"2024-05-01T00:00:00+09:00","n":2,"dst":"auto"}"#.into(),
        br#"{"id":"b","expr":"61 * * * *"}"#.into(),
        b"nonsense".into(),
        b"[1,2]".into(),
        b"\xff\xfe{}".into(),
        b"".into(),
        b"  \r".into(),
        br#"{"expr":"@at 2020-01-01T00:00:00Z","id":{"deep":[1]}}"#.into(),
        br#"{"id":"no expr"}"#.into(),
        br#"{"id":"type","expr":5}"#.into(),
        br#"{"id":"zone","expr":"@daily","tz":"Mars/Base"}"#.into(),
        br#"{"id":"from","expr":"@daily","from":"yesterday"}"#.into(),
        "{\"id\":\"minus\",\"expr\":\"@daily\",\"from\":\"2024-05-01T00:00:00\u{2212}02:00\"}".into(),
        br#"{"id":"n","expr":"@daily","n":-1}"#.into(),
        br#"{"id":"n2","expr":"@daily","n":1e9}"#.into(),
        br#"{"id":"dst","expr":"@daily","dst":"sometimes"}"#.into(),
        megabyte.into(),
        "[".repeat(100_000).into(),
        br#"{"id":"pair","expr":"30 2 * * *","tz":"Europe/Berlin","from":"2026-03-28T12:00:00Z","n":1,"dst":"shift+first"}"#.into(),
        br#"{"id":"cron","expr":"30 2 * * *","tz":"Europe/Berlin","from":"2026-03-28T12:00:00Z","n":1,"dst":"cron"}"#.into(),
        br#"{"id":"null","expr":"0 0 1 1 *","tz":null,"from":"2024-05-01T00:00:00Z","n":null,"dst":null}"#.into(),
    ];
    let answers = rows(&["-n", "1"], &lines.join(&b'\n'));
    let ids: Vec<&Value> = answers.iter().map(|row| &row["id"]).collect();
    assert_eq!(
        json!(ids),
        json!([
            1, "b", null, null, null, { "deep": [1] }, "no expr", "type", "zone", "from", "minus", "n", "n2", "dst", "long", null,
            "pair", "cron", "null"
        ])
    );
    assert_eq!(answers[0], json!({ "id": 1, "next": ["2024-05-01T03:00:00+09:00", "2024-05-02T03:00:00+09:00"] }));
    assert_eq!(answers[1], json!({ "id": "b", "error": "minute (column 1): out of range: found `61`, allowed: 0-59" }));
    assert_eq!(answers[5], json!({ "id": { "deep": [1] }, "next": [] }));
    for answer in answers[1..5].iter().chain(&answers[6..16]) {
        let error = answer["error"].as_str().unwrap();
        assert!(error.len() < 200 && !error.ends_with('.'), "{error}");
        assert_eq!(answer.as_object().unwrap().len(), 2);
    }
    assert_eq!(answers[16]["next"], json!(["2026-03-29T03:00:00+02:00"]));
    assert_eq!(answers[17]["next"], json!(["2026-03-30T02:30:00+02:00"]));
    assert_eq!(answers[18]["next"], json!(["2025-01-01T00:00:00+00:00"]));
}

#[test]
fn the_id_comes_first() {
    let rows = b"{\"expr\":\"@daily\",\"id\":7}\n{\"expr\":\"\",\"id\":8}\n";
    let output = run(&["next", "--jsonl", "-n1", "--from", "2024-05-01T00:00:00Z"], rows);
    let text = String::from_utf8(output.stdout).unwrap();
    let (first, second) = text.split_once('\n').unwrap();
    assert_eq!(first, r#"{"id":7,"next":["2024-05-02T00:00:00+00:00"]}"#);
    assert!(second.starts_with(r#"{"id":8,"error":"expression (column 1): "#), "{second}");
}

#[test]
fn an_id_is_repeated_as_it_was_written() {
    let ids = [
        "12345678901234567890123",
        "-9223372036854775809",
        "1e400",
        "1.50",
        r#""\ud800""#,
        r#"{"b":1,"a":[null]}"#,
        r#"[1,{"x": "y"}]"#,
        "true",
    ];
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    for id in ids.into_iter().chain([&*deep]) {
        for (expression, answer) in [
            (r#""@daily""#, r#""next":["2024-05-02T00:00:00+00:00"]"#),
            (r#""\ud800""#, r#""error":"expr is no text""#),
            ("[[[5]]]", r#""error":"expr is no text""#),
        ] {
            let row = format!("{{\"id\":{id},\"expr\":{expression}}}");
            let output = run(&["next", "--jsonl", "-n1", "--from", "2024-05-01T00:00:00Z"], row.as_bytes());
            assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{{\"id\":{id},{answer}}}\n"));
        }
    }
    // A carriage return between tokens is a blank; in the answer it would look like the end of a line.
    let output = run(&["next", "--jsonl"], b"{\"id\":[1,\r2],\"id\":[3,\r4]}");
    assert_eq!(output.stdout, b"{\"id\":[3, 4],\"error\":\"expr is missing\"}\n");
}

#[test]
fn an_answer_is_exact_where_the_offset_has_seconds() {
    let row = br#"{"id":1,"expr":"0 0 * * *","tz":"Africa/Monrovia","from":"1972-01-05T12:00:00Z","n":3}"#;
    assert_eq!(
        rows(&[], row)[0]["next"],
        json!(["1972-01-06T00:44:30Z", "1972-01-07T00:44:30+00:00", "1972-01-08T00:00:00+00:00"])
    );
    let shown = ok(&["next", "--tz", "Africa/Monrovia", "--from", "1972-01-05T12:00:00Z", "-n1", "0 0 * * *"]);
    assert_eq!(shown, "1972-01-06T00:00:00-00:44:30  1972-01-06T00:44:30Z\n");
}

#[test]
fn a_line_without_end_is_one_error() {
    let mut input = vec![b'x'; 17 << 20];
    input.extend_from_slice(b"\n{\"id\":2,\"expr\":\"@daily\",\"from\":\"2024-05-01T00:00:00Z\",\"n\":1}");
    let answers = rows(&[], &input);
    assert_eq!(answers.len(), 2);
    assert!(answers[0]["error"].as_str().unwrap().contains("bytes"));
    assert_eq!(answers[1], json!({ "id": 2, "next": ["2024-05-02T00:00:00+00:00"] }));
}

#[test]
fn a_row_is_answered_before_the_next_is_written() {
    use std::io::{BufRead as _, BufReader};
    let mut child = Command::new(env!("CARGO_BIN_EXE_timertask"))
        .args(["next", "--jsonl", "-n1", "--from", "2024-05-01T00:00:00Z"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for id in 0..3 {
        writeln!(stdin, "{{\"id\":{id},\"expr\":\"@daily\"}}").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer, json!({ "id": id, "next": ["2024-05-02T00:00:00+00:00"] }));
    }
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn exit_codes() {
    let code = |arguments: &[&str]| run(arguments, b"").status.code().unwrap();
    assert_eq!(code(&["next", "@daily"]), 0);
    assert_eq!(code(&["next", "@at 2020-01-01T00:00:00Z"]), 0);
    assert_eq!(code(&["next", "--jsonl"]), 0);
    assert_eq!(code(&["--help"]), 0);
    assert_eq!(code(&["next", "--help"]), 0);
    assert_eq!(code(&["--version"]), 0);
    for refused in ["", "0 0 30 2 *", "* * * *", "CRON_TZ=Mars/Base @daily", "\u{202e}"] {
        let output = run(&["next", refused], b"");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("timertask: ") && error.contains("allowed: ") && error.is_ascii(), "{error}");
    }
    for usage in [
        &["next"][..],
        &[],
        &["nonsense"],
        &["next", "--nonsense", "@daily"],
        &["next", "--tz", "Mars/Base", "@daily"],
        &["next", "--from", "yesterday", "@daily"],
        &["next", "-n", "0", "@daily"],
        &["next", "-n", "many", "@daily"],
        &["next", "--dst", "sometimes", "@daily"],
        &["next", "--jsonl", "@daily"],
        &["next", "--jsonl", "--json"],
    ] {
        assert_eq!(code(usage), 2, "{usage:?}");
    }
    let help = ok(&["next", "--help"]);
    for code in 0..=3 {
        assert!(help.contains(&format!("\n  {code}  ")), "{help}");
    }
}

#[test]
fn what_was_typed_is_shown_in_part_and_escaped() {
    let strange = "\u{1b}[31mred\u{7}\u{202e}\u{430}";
    let long = "x".repeat(100_000);
    for typed in [strange, &long] {
        for arguments in [
            &["next", "--tz", typed, "@daily"][..],
            &["next", "--from", typed, "@daily"],
            &["next", "--dst", typed, "@daily"],
            &["next", "-n", typed, "@daily"],
            &["next", "@daily", typed],
            &["next", &format!("--{typed}"), "@daily"],
            &["next", &format!("--json={typed}"), "@daily"],
            &["next", &format!("-{typed}"), "@daily"],
            &[typed],
        ] {
            let output = run(arguments, b"");
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{error}");
            assert!(error.bytes().all(|b| b == b'\n' || (b' '..=b'~').contains(&b)), "{error:?}");
            assert!(error.len() < 400, "{error}");
        }
    }
}

#[test]
fn warnings_go_to_standard_error() {
    let output = run(&["next", "--tz", "EST", "-n1", "@daily"], b"");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("timertask: warning: `EST`"));
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    for arguments in [&["next", "-n", "100000", "* * * * * *"][..], &["next", "--json", "-n", "100000", "* * * * *"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_timertask"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
    }
}
