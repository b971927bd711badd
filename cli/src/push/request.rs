//! What is sent to a server for a window: how Pyroscope, Parca and collectors of OpenTelemetry want it.
//!
//! Invariant: a request is whole in itself, so that it can wait, and be sent again.

use std::fmt::Write as _;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use memtrack_reader::View;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::Write as _;
use twox_hash::XxHash64;

use super::made::WindowSpan;
use crate::args::push::{PushFormat, PushServer};
use crate::export::{otlp, write_pprof_window};
use crate::live::picture::{ALLOCATED, LIVE};
use crate::reports::capture_info::Capture;

/// Where the sums of a window stand.
const SUMS: [View; 2] = [ALLOCATED, LIVE];
/// The path at which Pyroscope takes profiles.
const PYROSCOPE_PATH: &str = "/ingest";
/// The path at which Parca takes profiles.
const PARCA_PATH: &str = "/profiles/writeraw";

/// A request by POST.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PushRequest {
    /// Below the server's root.
    pub(super) path: String,
    /// Not encoded yet.
    pub(super) query: Vec<(String, String)>,
    pub(super) content_type: String,
    /// The body is compressed by gzip as a whole.
    pub(super) gzip: bool,
    #[serde(skip)]
    pub(super) body: Vec<u8>,
}

impl PushRequest {
    /// Whether memtrack makes requests with this path: one that was stored is sent to no other.
    pub(super) fn has_known_path(&self) -> bool {
        [PYROSCOPE_PATH, PARCA_PATH, otlp::PATH].contains(&self.path.as_str())
    }
}

/// A window of a process with what is known of it.
pub(super) struct PushedWindow {
    pub(super) span: WindowSpan,
    pub(super) capture: Capture,
    /// When it began, since 1970.
    pub(super) time_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) labels: PushLabels,
}

/// What tells the profiles of one process from those of others.
#[derive(Clone, Debug)]
pub(super) struct PushLabels {
    pub(super) service: String,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) python: Option<String>,
    /// The user's own.
    pub(super) own: Vec<(String, String)>,
}

/// What the user calls what every process has, whatever a server calls it.
const KNOWN: [&str; 3] = ["service", "host", "pid"];

impl PushLabels {
    /// What the user has given a label, the last one of that name.
    fn own(&self, name: &str) -> Option<&str> {
        self.own.iter().rev().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    fn service(&self) -> &str {
        self.own("service").unwrap_or(&self.service)
    }

    /// Names and values, with these names for what every process has, of [`KNOWN`]; the user's own come last, and win.
    fn named(&self, names: [&str; 3]) -> Vec<(String, String)> {
        let values = [self.service().to_owned(), self.host.clone(), self.pid.to_string()];
        let values = KNOWN.into_iter().zip(values).map(|(name, value)| self.own(name).map_or(value, str::to_owned));
        let known = names.into_iter().map(String::from).zip(values);
        let known =
            known.filter(|(name, _)| !name.is_empty() && self.own(name).is_none_or(|_| KNOWN.contains(&name.as_str())));
        known.chain(self.own.iter().filter(|(name, _)| !KNOWN.contains(&name.as_str())).cloned()).collect()
    }
}

impl PushedWindow {
    /// As this kind of server wants it.
    ///
    /// # Errors
    /// The window cannot be written.
    pub(super) fn request(&self, server: PushServer) -> Result<PushRequest> {
        match server {
            PushServer::Profiles(PushFormat::Pyroscope) => self.pyroscope(),
            PushServer::Profiles(PushFormat::Parca) => self.parca(),
            PushServer::Otlp => self.otlp(),
        }
    }

    fn pprof(&self) -> Result<Vec<u8>> {
        let mut profile = Vec::new();
        write_pprof_window(&self.capture, SUMS, (self.time_ns, self.duration_ns), &mut profile)?;
        Ok(profile)
    }

    fn pyroscope(&self) -> Result<PushRequest> {
        let profile = self.pprof()?;
        let boundary = format!("memtrack-{:016x}", XxHash64::oneshot(0, &profile));
        let mut body = Vec::with_capacity(profile.len() + 1024);
        let types = sample_types().to_string();
        for (name, file, part) in
            [("profile", "profile.pprof", &profile[..]), ("sample_type_config", "config.json", types.as_bytes())]
        {
            let head = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{file}\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            );
            body.extend([head.as_bytes(), part, b"\r\n"].concat());
        }
        body.extend(format!("--{boundary}--\r\n").as_bytes());
        let seconds = |ns: u64| (ns / 1_000_000_000).to_string();
        let query = [
            ("name", self.pyroscope_name()),
            ("from", seconds(self.time_ns)),
            ("until", seconds(self.time_ns.saturating_add(self.duration_ns).saturating_add(999_999_999))),
            ("format", "pprof".into()),
            ("spyName", "memtrack".into()),
        ];
        let query = query.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let content_type = format!("multipart/form-data; boundary={boundary}");
        Ok(PushRequest { path: PYROSCOPE_PATH.into(), query, content_type, gzip: false, body })
    }

    /// `service{host=…,pid=…}`.
    fn pyroscope_name(&self) -> String {
        let mut name = String::new();
        let _ = write!(name, "{}{{", without_syntax(self.labels.service()));
        let labels = self.labels.named(["", "host", "pid"]);
        let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={}", without_syntax(value))).collect();
        name.push_str(&labels.join(","));
        name.push('}');
        name
    }

    fn parca(&self) -> Result<PushRequest> {
        let mut labels = vec![("__name__".to_owned(), "memory".to_owned())];
        labels.extend(self.labels.named(["service", "host", "pid"]));
        let labels: Vec<_> = labels.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let series = json!([{
            "labels": {"labels": labels},
            "samples": [{"rawProfile": STANDARD.encode(self.pprof()?)}],
        }]);
        let body = json!({"series": series, "normalized": true}).to_string().into_bytes();
        let content_type = "application/json".into();
        Ok(PushRequest { path: PARCA_PATH.into(), query: Vec::new(), content_type, gzip: false, body })
    }

    fn otlp(&self) -> Result<PushRequest> {
        let mut attributes = self.labels.named(["service.name", "host.name", "process.pid"]);
        if let Some(version) = &self.labels.python {
            attributes.push(("process.runtime.name".into(), "cpython".into()));
            attributes.push(("process.runtime.version".into(), version.clone()));
        }
        let identity = format!("{} {} {}", self.labels.host, self.labels.pid, self.time_ns);
        let id = XxHash64::oneshot(0, identity.as_bytes());
        let times = (self.time_ns, self.duration_ns);
        let message = otlp::window(&self.capture, SUMS, times, &attributes, id);
        let mut body = GzEncoder::new(Vec::new(), Compression::default());
        body.write_all(&message)?;
        let content_type = "application/x-protobuf".into();
        Ok(PushRequest { path: otlp::PATH.into(), query: Vec::new(), content_type, gzip: true, body: body.finish()? })
    }
}

/// How Pyroscope is to add values up: what was allocated is of the window alone, unlike in Go's profiles.
fn sample_types() -> serde_json::Value {
    let of = |units: &str, aggregation: &str| json!({"units": units, "aggregation": aggregation, "cumulative": false});
    json!({
        "alloc_objects": of("objects", "sum"),
        "alloc_space": of("bytes", "sum"),
        "inuse_objects": of("objects", "average"),
        "inuse_space": of("bytes", "average"),
    })
}

/// The text without what separates labels.
fn without_syntax(text: &str) -> String {
    text.chars().map(|char| if "{}=,\"".contains(char) || char.is_control() { '_' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::PushLabels;

    /// Collectors group by `service.name`; `service` beside it would be nobody's.
    #[test]
    fn the_users_labels_stand_where_a_server_looks_for_them() {
        let named = |own: &[(&str, &str)], names| {
            let own = own.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            let labels = PushLabels { service: "svc.py".into(), host: "web1".into(), pid: 7, python: None, own };
            let named = labels.named(names).into_iter().map(|(name, value)| format!("{name}={value}"));
            named.collect::<Vec<_>>().join(" ")
        };
        let otlp = ["service.name", "host.name", "process.pid"];
        let own = [("service", "shop"), ("env", "prod")];
        assert_eq!(named(&[], otlp), "service.name=svc.py host.name=web1 process.pid=7");
        assert_eq!(named(&own, otlp), "service.name=shop host.name=web1 process.pid=7 env=prod");
        assert_eq!(named(&own, ["service", "host", "pid"]), "service=shop host=web1 pid=7 env=prod");
        assert_eq!(named(&own, ["", "host", "pid"]), "host=web1 pid=7 env=prod");
        assert_eq!(named(&[("host", "a"), ("service.name", "b")], otlp), "host.name=a process.pid=7 service.name=b");
    }
}
