//! The options that send profiles to servers while a program is recorded.
//!
//! Invariant: an address that is accepted is one that can be connected to without TLS.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{ArgGroup, Args, ValueEnum};
use twox_hash::XxHash64;
use ureq::http::Uri;

use super::times::window;

/// Where windows of the recording are sent.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("servers").args(["push", "otlp"]).multiple(true)))]
pub(crate) struct PushArgs {
    /// Send a profile of each window of time to the Pyroscope server at URL, such as http://127.0.0.1:4040, while the program runs
    #[arg(long, value_name = "URL")]
    pub(crate) push: Option<ServerUrl>,
    /// The length of a window, from 100ms to a day: 15s, 500ms, 5m, 1h
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = window, requires = "servers")]
    pub(crate) push_every: Duration,
    /// A label of the profiles, beside service, host and pid; may be repeated. `service` gives another name than the script or
    /// program
    #[arg(long, value_name = "NAME=VALUE", value_parser = label, requires = "servers")]
    pub(crate) push_label: Vec<(String, String)>,
    /// What kind of server --push names
    #[arg(long, value_enum, default_value = "pyroscope", requires = "push")]
    pub(crate) push_format: PushFormat,
    /// Send the same windows to the OpenTelemetry collector at URL, such as http://127.0.0.1:4318, as OTLP profiles
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<ServerUrl>,
}

impl PushArgs {
    /// The servers.
    pub(crate) fn servers(&self) -> Vec<(PushServer, ServerUrl)> {
        let push = self.push.iter().map(|url| (PushServer::Profiles(self.push_format), url.clone()));
        push.chain(self.otlp.iter().map(|url| (PushServer::Otlp, url.clone()))).collect()
    }
}

/// A server that takes pprof's profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PushFormat {
    /// Grafana Pyroscope, or an agent that takes its requests
    Pyroscope,
    /// Parca
    Parca,
}

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushServer {
    /// One that takes pprof's profiles.
    Profiles(PushFormat),
    /// One that takes OTLP profiles.
    Otlp,
}

impl PushServer {
    /// The option that names it.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Profiles(_) => "--push",
            Self::Otlp => "--otlp",
        }
    }
}

/// The root of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    root: String,
    /// What stood before the host: it is shown to nobody but the server.
    user: Option<String>,
}

impl ServerUrl {
    /// Without a slash at its end.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// A hash of the user's name without the password.
    pub(crate) fn user_hash(&self) -> Option<u64> {
        let user = self.user.as_ref()?;
        let name = user.split_once(':').map_or(user.as_str(), |(name, _)| name);
        Some(XxHash64::oneshot(0, name.as_bytes()))
    }

    /// The header that names the user.
    pub(crate) fn authorization(&self) -> Option<String> {
        self.user.as_ref().map(|user| format!("Basic {}", STANDARD.encode(user)))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.root)
    }
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = "expected the root of a server, such as http://127.0.0.1:4040";
        let uri: Uri = text.parse().map_err(|error| format!("{error}: {example}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err("memtrack speaks no TLS: send to an agent beside it, such as Alloy or an OpenTelemetry \
                            collector, or to a proxy, by http://, which sends on by https"
                    .into());
            }
            _ => return Err(example.into()),
        }
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or(example)?;
        if uri.query().is_some() {
            return Err(format!("a query has no meaning here: {example}"));
        }
        let (user, address) = match authority.as_str().rsplit_once('@') {
            Some((user, address)) => (Some(user.to_owned()), address),
            None => (None, authority.as_str()),
        };
        let port = address.rsplit(']').next().and_then(|rest| rest.rsplit_once(':'));
        if port.is_some_and(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(format!("a port is a number up to 65535: {example}"));
        }
        Ok(Self { root: format!("http://{address}{}", uri.path().trim_end_matches('/')), user })
    }
}

/// Parses a label.
fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let is_name = |name: &str| {
        let rest = name.strip_prefix(|first: char| first.is_ascii_alphabetic() || first == '_');
        rest.is_some_and(|rest| rest.chars().all(|char| char.is_ascii_alphanumeric() || "_.".contains(char)))
    };
    if !is_name(name) || name.starts_with("__") {
        return Err("the name of a label has letters, digits, _ and ., begins with a letter or one _".into());
    }
    if value.is_empty() || value.contains(|char: char| "{}=,\"".contains(char) || char.is_control()) {
        return Err("the value of a label has at least one character, and none of { } = , \"".into());
    }
    Ok((name.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use super::{ServerUrl, label};

    #[test]
    fn roots_of_servers() {
        let root = |text: &str| text.parse::<ServerUrl>().map(|url| url.root().to_owned());
        assert_eq!(root("http://127.0.0.1:4040"), Ok("http://127.0.0.1:4040".into()));
        assert_eq!(root("http://[::1]:4040/pyroscope/"), Ok("http://[::1]:4040/pyroscope".into()));
        assert!(root("https://example.org").unwrap_err().contains("TLS"));
        for wrong in
            ["", "4040", "localhost:4040", "http://", "ftp://a", "http://a/?b=c", "http://a b", "http://a:99999"]
        {
            assert!(root(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let url: ServerUrl = "http://me:secret@host:1/x".parse().unwrap();
        assert_eq!((url.to_string().as_str(), url.root()), ("http://host:1/x", "http://host:1/x"));
        assert_eq!(url.authorization().as_deref(), Some("Basic bWU6c2VjcmV0"));
    }

    #[test]
    fn labels_have_no_syntax_of_servers() {
        assert_eq!(label("env=prod"), Ok(("env".into(), "prod".into())));
        assert_eq!(label("k8s.pod=web-1"), Ok(("k8s.pod".into(), "web-1".into())));
        for wrong in ["env", "=prod", "env=", "1a=b", "a b=c", "__name__=x", "a={b}", "a=b,c=d", "a=b=c"] {
            assert!(label(wrong).is_err(), "{wrong}");
        }
    }
}
