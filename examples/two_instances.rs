//! Two processes on one SQLite file: each slot is run by one of them. Then one is killed, and the other goes on.
//!
//! This program starts itself twice; a child leaves when its standard input ends.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use timertask::seam::Overlap;
use timertask::sqlite::Sqlite;
use timertask::{Plan, Run, Scheduler};
use timertask_examples::Scratch;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "instance", name, file] => instance(name, file),
        _ => both(),
    }
}

/// What each process of a service does. It knows nothing of the other one but the file.
fn instance(name: &str, file: &str) -> Result<(), Box<dyn Error>> {
    let job = |run: &Run| {
        println!("{} {}", run.instance(), run.slot_key());
        Ok(())
    };
    let scheduler = Scheduler::builder(job).instance(name).store(Sqlite::open(file)?).start()?;
    // With `Skip`, the default, a plan whose runner was killed half-way waits until that lease has lapsed and was
    // swept up: about a minute. These may run beside such a leftover.
    let plans = [Plan::new("tick", "@every 1s"), Plan::new("tock", "* * * * * *")];
    scheduler.reconcile(plans.map(|plan| plan.overlap(Overlap::Allow(2))))?;

    std::io::stdin().read_to_end(&mut Vec::new())?;
    scheduler.close(Duration::from_secs(5))?;
    Ok(())
}

fn both() -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let file = scratch.file("jobs.db");
    let (line, lines) = channel();
    let mut a = start("a", &file, line.clone())?;
    let mut b = start("b", &file, line)?;

    let mut runs = BTreeMap::new();
    watch(&lines, 8, &mut runs)?;
    println!("killing a");
    a.kill()?;
    a.wait()?;
    watch(&lines, 8, &mut runs)?;
    drop(b.stdin.take());
    let left_well = b.wait()?.success();

    if let Some((slot, by)) = runs.iter().find(|(_, by)| by.len() > 1) {
        return Err(format!("{slot} was run by {by:?}").into());
    }
    if !left_well {
        return Err("b did not leave as it should".into());
    }
    println!("ok: {} slots, each of them run once", runs.len());
    Ok(())
}

/// Starts a child, whose lines go into the channel.
fn start(name: &str, file: &Path, line: Sender<String>) -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.args(["instance", name]).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let output = BufReader::new(child.stdout.take().ok_or("the output is piped")?);
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
    Ok(child)
}

/// Takes `count` lines, and notes who ran which slot.
fn watch(
    lines: &Receiver<String>,
    count: usize,
    runs: &mut BTreeMap<String, Vec<String>>,
) -> Result<(), Box<dyn Error>> {
    for _ in 0..count {
        let text = lines.recv_timeout(Duration::from_secs(10))?;
        let (instance, slot) = text.split_once(' ').ok_or("a line is an instance and a slot")?;
        println!("{slot} by {instance}");
        runs.entry(slot.to_owned()).or_default().push(instance.to_owned());
    }
    Ok(())
}
