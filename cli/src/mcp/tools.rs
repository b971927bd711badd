//! The tools: each runs a report of memtrack's own and answers with its text.
//!
//! A report runs in a process of its own, so that a damaged or huge capture ends that process at the worst. Texts are the
//! ones for people: short, and with control characters escaped. Invariant: arguments of a client become values of options and
//! paths of captures, never options.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use clap::ValueEnum;
use memtrack_reader::query::field_names;

use super::captures::CaptureDirectory;
use crate::reports::capture_info::rfc3339;
use crate::reports::query::GroupBy;
use crate::reports::source::SOURCES_VARIABLE;
use crate::units::size;

/// Longest answer in bytes.
const LONGEST: usize = 60_000;
/// How long a report may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often its end is looked for.
const LOOK: Duration = Duration::from_millis(5);
/// Rows where the client does not say how many.
const ROWS: u64 = 20;

/// A tool: its name, its description, and its arguments.
struct Tool {
    name: &'static str,
    description: &'static str,
    arguments: &'static [Argument],
}

/// What an argument is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Argument {
    Capture(&'static str),
    View,
    Limit,
    Budget,
    Function,
    Thread,
    Own,
    From,
    To,
    Least,
    Expression,
    By,
    At,
}

const FILTERED: &[Argument] = &[
    Argument::Capture("capture"),
    Argument::View,
    Argument::Limit,
    Argument::Function,
    Argument::Thread,
    Argument::Own,
    Argument::From,
    Argument::To,
];

const TOOLS: [Tool; 8] = [
    Tool { name: "captures", description: "Lists the captures that can be read, the newest first.", arguments: &[] },
    Tool {
        name: "explain",
        description: "What stands out in a capture, the most important first: growth without end, holders of the peak, copies, churn, \
                      memory kept by the allocator, small objects, the end by the OOM killer; each with figures, the line of own \
                      code, and what may be done.",
        arguments: &[Argument::Capture("capture"), Argument::Budget],
    },
    Tool {
        name: "stats",
        description: "The figures of a capture: totals, peak, leaks, sizes, allocators, threads, biggest functions.",
        arguments: &[
            Argument::Capture("capture"),
            Argument::Limit,
            Argument::Function,
            Argument::Thread,
            Argument::Own,
        ],
    },
    Tool { name: "table", description: "Allocations by line of own code and allocator.", arguments: FILTERED },
    Tool {
        name: "tree",
        description: "The call tree, with the total of each call.",
        arguments: &[
            Argument::Capture("capture"),
            Argument::View,
            Argument::Least,
            Argument::Function,
            Argument::Thread,
            Argument::Own,
        ],
    },
    Tool {
        name: "query",
        description: "Single allocations that an expression selects, or groups of them.",
        arguments: &[Argument::Capture("capture"), Argument::Expression, Argument::By, Argument::Limit],
    },
    Tool {
        name: "resident",
        description: "Where resident memory is, to the page: live blocks, what allocators keep, stacks, files; and what would give it \
                      back.",
        arguments: &[Argument::Capture("capture"), Argument::At, Argument::Limit],
    },
    Tool {
        name: "diff",
        description: "Compares two captures: functions that grew, shrank, appeared or disappeared.",
        arguments: &[Argument::Capture("before"), Argument::Capture("after"), Argument::View, Argument::Limit],
    },
];

impl Argument {
    fn name(self) -> &'static str {
        match self {
            Self::Capture(name) => name,
            Self::View => "view",
            Self::Limit => "limit",
            Self::Budget => "budget",
            Self::Function => "function",
            Self::Thread => "thread",
            Self::Own => "own",
            Self::From => "from",
            Self::To => "to",
            Self::Least => "least_percent",
            Self::Expression => "expression",
            Self::By => "by",
            Self::At => "at",
        }
    }

    fn is_required(self) -> bool {
        matches!(self, Self::Capture(_) | Self::Expression)
    }

    fn schema(self) -> Value {
        let text = |about: &str| json!({"type": "string", "description": about});
        match self {
            Self::Capture(_) => text("A capture, as `captures` lists it"),
            Self::View => json!({
                "type": "string", "enum": ["high-water-mark", "leaks", "temporary", "allocated"],
                "description": "What was live at the peak (default), never freed, freed at once, or everything"
            }),
            Self::Limit => {
                json!({"type": "integer", "minimum": 1, "maximum": 500, "description": "Rows at most (default 20)"})
            }
            Self::Budget => {
                json!({"type": "integer", "minimum": 500, "description": "Characters at most (default 4000)"})
            }
            Self::Function => text("Only stacks that contain a function whose name contains this"),
            Self::Thread => text("Only allocations of the thread of this name or number"),
            Self::Own => json!({"type": "boolean", "description": "Only allocations with own code in the stack"}),
            Self::From => text("Not before this time: 2s, 50%, mark:NAME"),
            Self::To => text("Before this time: 2s, 50%, mark:NAME"),
            Self::Least => {
                json!({"type": "number", "minimum": 0, "maximum": 100, "description": "Calls with less are summed up"})
            }
            Self::Expression => text(&format!(
                "Such as: function ~ \"json.*\" and bytes > 1MB and lifetime > 2s; names: {}",
                field_names().collect::<Vec<_>>().join(", ")
            )),
            Self::By => json!({"type": "string", "enum": groupings(), "description": "Group them by this"}),
            Self::At => text("peak (default), end, or a time such as 2s or mark:NAME"),
        }
    }

    /// The words of the command line for a value.
    fn words(self, value: &Value) -> Result<Vec<String>, String> {
        let wrong = || format!("{}: expected a value as the tool's schema describes it", self.name());
        let text = || value.as_str().map(str::to_owned).ok_or_else(wrong);
        let number =
            || value.as_f64().filter(|number| *number >= 0.0).map(|number| number.to_string()).ok_or_else(wrong);
        Ok(match self {
            // These are not options.
            Self::Capture(_) | Self::Expression => Vec::new(),
            Self::View => match value.as_str().ok_or_else(wrong)? {
                "high-water-mark" => Vec::new(),
                view @ ("leaks" | "temporary" | "allocated") => vec![format!("--{view}")],
                _ => return Err(wrong()),
            },
            Self::Limit => {
                vec![format!("-n={}", value.as_u64().filter(|rows| (1..=500).contains(rows)).ok_or_else(wrong)?)]
            }
            Self::Own => value.as_bool().ok_or_else(wrong)?.then(|| "--own".to_owned()).into_iter().collect(),
            Self::Budget => vec![format!("--budget={}", value.as_u64().ok_or_else(wrong)?)],
            Self::Least => vec![format!("--least={}", number()?)],
            Self::Function | Self::Thread | Self::From | Self::To | Self::By | Self::At => {
                vec![format!("--{}={}", self.name(), text()?)]
            }
        })
    }
}

/// What `query --by` takes.
fn groupings() -> Vec<String> {
    let all = GroupBy::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    all.map(|value| value.get_name().to_owned()).collect()
}

/// The descriptions of all tools.
pub(super) fn list() -> Vec<Value> {
    TOOLS.iter().map(Tool::description).collect()
}

impl Tool {
    fn description(&self) -> Value {
        let properties: Map<_, _> =
            self.arguments.iter().map(|argument| (argument.name().to_owned(), argument.schema())).collect();
        let required: Vec<_> =
            self.arguments.iter().filter(|argument| argument.is_required()).map(|argument| argument.name()).collect();
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": {
                "type": "object", "properties": properties, "required": required, "additionalProperties": false,
            },
            "annotations": {"readOnlyHint": true, "openWorldHint": false},
        })
    }

    /// The command line of the report.
    fn command(&self, captures: &CaptureDirectory, given: &Map<String, Value>) -> Result<Vec<String>, String> {
        let known = |name: &&String| !self.arguments.iter().any(|argument| argument.name() == *name);
        if let Some(unknown) = given.keys().find(known) {
            return Err(format!("{unknown}: no argument of this tool"));
        }
        let mut words = vec![self.name.to_owned(), "--color=never".to_owned()];
        if self.name == "tree" {
            words.push("--text".into());
        }
        if self.arguments.contains(&Argument::Limit) && !given.contains_key("limit") {
            words.push(format!("-n={ROWS}"));
        }
        for argument in self.arguments {
            if let Some(value) = given.get(argument.name()) {
                words.extend(argument.words(value)?);
            }
        }
        words.push("--".into());
        // In the order of the command line: the expression stands before the capture.
        let mut positions: Vec<_> = self.arguments.iter().filter(|argument| argument.is_required()).collect();
        positions.sort_by_key(|argument| **argument != Argument::Expression);
        for argument in positions {
            let text = given.get(argument.name()).and_then(Value::as_str);
            let text = text.ok_or_else(|| format!("{}: expected a text", argument.name()))?;
            words.push(match argument {
                Argument::Capture(_) => captures.path(text)?.to_str().ok_or("the path is no UTF-8")?.to_owned(),
                _ => text.to_owned(),
            });
        }
        Ok(words)
    }
}

/// Calls a tool; what a report refuses is an answer that says so.
///
/// # Errors
/// A text for the client: there is no such tool.
pub(super) fn call(captures: &CaptureDirectory, parameters: &Value) -> Result<Value, String> {
    let name = parameters.get("name").and_then(Value::as_str).unwrap_or_default();
    let tool = TOOLS.iter().find(|tool| tool.name == name).ok_or_else(|| format!("no such tool: {name:?}"))?;
    let none = Map::new();
    let given = parameters.get("arguments").and_then(Value::as_object).unwrap_or(&none);
    let told = tool.command(captures, given).and_then(|words| match name {
        "captures" => Ok(listed(captures)),
        _ => report(&words),
    });
    let (text, is_error) = match told {
        Ok(text) => (text, false),
        Err(wrong) => (wrong, true),
    };
    Ok(json!({"content": [{"type": "text", "text": text}], "isError": is_error}))
}

fn listed(captures: &CaptureDirectory) -> String {
    let (found, is_cut) = captures.list();
    let mut text = String::new();
    for capture in &found {
        let time = capture.modified.map(|seconds| rfc3339(seconds.saturating_mul(1_000_000_000))).unwrap_or_default();
        text += &format!("{}\t{}\t{time}\n", Value::from(capture.name.as_str()), size(capture.bytes));
    }
    match (found.is_empty(), is_cut) {
        (true, _) => "no captures; `memtrack run -o app.bin app.py` makes one".into(),
        (false, true) => text + "and more, which are not listed\n",
        (false, false) => text,
    }
}

/// Runs memtrack with these words; gives what it prints.
fn report(words: &[String]) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| format!("memtrack cannot be run: {error}"))?;
    let mut command = Command::new(program);
    // A capture may name any file as its source: only what it brings itself is shown. Nor is anything fetched for it.
    command.env(SOURCES_VARIABLE, "recorded").env_remove("DEBUGINFOD_URLS");
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("memtrack cannot be run: {error}"))?;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let readers = (std::thread::spawn(move || head(out)), std::thread::spawn(move || head(errors)));
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "the report took more than {} s: filter it, or ask for another",
                    PATIENCE.as_secs()
                ));
            }
        }
    };
    let [out, errors] = [readers.0.join(), readers.1.join()].map(Result::unwrap_or_default);
    if status.code() != Some(0) {
        return Err(if errors.is_empty() { "the report failed".into() } else { errors });
    }
    // Warnings say what the figures leave out.
    Ok(if errors.is_empty() { out } else { format!("{errors}\n{out}") })
}

/// The first [`LONGEST`] bytes, cut at a line; the rest is read and dropped.
fn head(source: Option<impl Read>) -> String {
    let Some(mut source) = source else { return String::new() };
    let mut bytes = Vec::new();
    let _ = (&mut source).take(LONGEST as u64 + 1).read_to_end(&mut bytes);
    let _ = std::io::copy(&mut source, &mut std::io::sink());
    let is_cut = bytes.len() > LONGEST;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_cut {
        let end = text.rfind('\n').map_or(0, |end| end + 1);
        text.truncate(end);
        text += "… cut here: ask for fewer rows, or filter\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use memtrack_reader::query::{Expr, field_names};

    use super::{Argument, groupings};

    /// The description promises what `memtrack query` takes: each of its names is in an expression that is parsed.
    #[test]
    fn the_query_tool_names_what_queries_take() {
        let about = Argument::Expression.schema()["description"].as_str().unwrap().to_owned();
        let (_, names) = about.split_once("names: ").unwrap();
        assert_eq!(names.split(", ").collect::<Vec<_>>(), field_names().collect::<Vec<_>>());
        for name in names.split(", ") {
            let is_field = |rest: &str| format!("{name}{rest}").parse::<Expr>().is_ok();
            assert!(["", " = malloc", " > 1", " > 1s"].into_iter().any(is_field), "{name}");
        }
        assert!(names.contains("freed_by, ") && names.contains("peak, ") && !names.contains("live_at_peak"), "{names}");
        let groups = Argument::By.schema()["enum"].clone();
        assert_eq!(groups, serde_json::json!(groupings()));
        assert!(groupings().contains(&"module".to_owned()) && groupings().contains(&"stack".to_owned()));
    }
}
