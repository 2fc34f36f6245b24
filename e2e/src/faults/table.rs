//! Formats outcomes as a table of at most 100 columns.

use std::fmt::Write;

use anyhow::Result;

use super::{Fault, Outcome};

/// Width of the column with a fault's name.
pub(super) const NAME_BYTES: usize = 38;

/// The table of all faults. Below the table are the notes and errors of the faults.
#[must_use]
pub fn table(outcomes: &[(&Fault, Result<Outcome>)]) -> String {
    let mut rows = vec![
        [
            "fault", "opens", "failed", "streams", "lost", "failing", "whole",
        ]
        .map(str::to_owned),
    ];
    let mut notes = String::new();
    for (fault, outcome) in outcomes {
        let name = match fault.runs {
            1 => fault.name.to_owned(),
            runs => format!("{}, {runs} x", fault.name),
        };
        match outcome {
            Ok(outcome) => {
                rows.push(row(name, outcome));
                let hows = outcome
                    .load
                    .iter()
                    .flat_map(|load| [&load.failed, &load.lost]);
                let hows: Vec<_> = hows
                    .flatten()
                    .map(|(how, failures)| format!("{} {how:?}", failures.count))
                    .collect();
                let words = [hows.join(", "), outcome.note.clone()];
                let words: Vec<_> = words.into_iter().filter(|text| !text.is_empty()).collect();
                if !words.is_empty() {
                    note(&mut notes, fault, &words.join("; "));
                }
            }
            Err(error) => {
                rows.push([&name, "-", "-", "-", "-", "-", "FAILED"].map(str::to_owned));
                note(&mut notes, fault, &format!("{error:#}"));
            }
        }
    }
    let mut text = String::new();
    for [name, numbers @ ..] in rows {
        let numbers = numbers.map(|number| format!("{number:>9}")).join("");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<width$}{numbers}", width = NAME_BYTES + 6);
    }
    format!("{text}\n{notes}")
}

fn row(name: String, outcome: &Outcome) -> [String; 7] {
    let of_load = |number: fn(&muxtunnel_bench_api::load::Report) -> u64| {
        let load = outcome.load.as_ref();
        load.map_or_else(|| "-".to_owned(), |load| number(load).to_string())
    };
    let seconds = |seconds: Option<f64>| seconds.map_or("-".to_owned(), |s| format!("{s:.1}"));
    [
        name,
        of_load(|load| load.opens),
        of_load(muxtunnel_bench_api::load::Report::failed_opens),
        of_load(|load| load.streams),
        of_load(muxtunnel_bench_api::load::Report::lost_streams),
        seconds(outcome.failing_seconds),
        seconds(Some(outcome.whole_seconds)),
    ]
}

fn note(notes: &mut String, fault: &Fault, words: &str) {
    let _ = writeln!(notes, "{}: {words}", fault.name);
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use muxtunnel_bench_api::load::{Failure, Report};

    use super::*;
    use crate::faults::ALL;

    #[test]
    fn a_table_has_a_row_a_fault_and_words_for_what_failed() {
        let mut load = Report {
            opens: 30_000,
            streams: 20,
            ..Report::default()
        };
        Report::count(&mut load.failed, Failure::Refused, 1);
        let good = Outcome {
            load: Some(load),
            failing_seconds: Some(0.25),
            whole_seconds: 7.04,
            note: "peak 40 MiB".to_owned(),
        };
        let table = table(&[(&ALL[0], Ok(good)), (&ALL[1], Err(anyhow!("no node")))]);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines.iter().all(|line| line.len() <= 100), "{table}");
        let words: Vec<_> = lines[1].split_whitespace().rev().take(6).collect();
        assert_eq!(words, ["7.0", "0.2", "0", "20", "1", "30000"]);
        assert!(lines[2].ends_with("FAILED"), "{table}");
        assert!(table.contains(&format!("{}: 1 Refused; peak 40 MiB", ALL[0].name)));
        assert!(table.contains(&format!("{}: no node", ALL[1].name)));
    }
}
