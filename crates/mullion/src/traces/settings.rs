//! OpenTelemetry's settings of traces, as flags and variables by its own names.

use std::fmt;

use clap::Args;
use http::{HeaderName, HeaderValue, Uri};
use mullion_controllers::traces::Sampler;
use mullion_kube_text::golang::url::path_unescape;

use crate::failure::Failure;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const SERVICE: &str = "OTEL_SERVICE_NAME";
const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";

/// What is added to the endpoint.
const PATH: &str = "/v1/traces";
/// The attribute with the service's name.
const SERVICE_NAME: &str = "service.name";

/// OpenTelemetry's settings, by its names.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "OpenTelemetry's settings of traces (docs/metrics.md)")]
pub(crate) struct TraceArgs {
    /// Send traces of decisions to this collector, to URL/v1/traces [default: no traces]
    #[arg(long, value_name = "URL", env = ENDPOINT, hide_env_values = true)]
    otlp_endpoint: Option<String>,

    /// Headers of requests to the collector: KEY=VALUE with commas between, values as in URLs
    #[arg(long, value_name = "HEADERS", env = HEADERS, hide_env_values = true)]
    otlp_headers: Option<String>,

    /// How spans are sent: http/json
    #[arg(long, value_name = "PROTOCOL", env = PROTOCOL, hide_env_values = true)]
    otlp_protocol: Option<String>,

    /// The name of this program in traces [default: mullion]
    #[arg(long, value_name = "NAME", env = SERVICE, hide_env_values = true)]
    otel_service_name: Option<String>,

    /// What else traces say of this program: KEY=VALUE with commas between, values as in URLs
    #[arg(long, value_name = "ATTRIBUTES", env = ATTRIBUTES, hide_env_values = true)]
    otel_resource_attributes: Option<String>,

    /// Which pods have traces: always_on, always_off or traceidratio, also with parentbased_ in front [default: always_on]
    #[arg(long, value_name = "SAMPLER", env = SAMPLER, hide_env_values = true)]
    otel_traces_sampler: Option<String>,

    /// The part of them that traceidratio keeps, from 0 to 1 [default: 1]
    #[arg(long, value_name = "PART", env = SAMPLER_ARG, hide_env_values = true)]
    otel_traces_sampler_arg: Option<String>,
}

/// Where traces go, and which.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TraceSettings {
    /// The URL without its path.
    pub(super) server: Uri,
    /// The path there.
    pub(super) path: String,
    /// The headers of each request.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Which traces there are.
    pub(super) sampler: Sampler,
    /// The attributes of the process.
    pub(super) resource: Vec<(String, String)>,
}

impl fmt::Display for TraceSettings {
    /// Writes the URL to which spans are sent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.server.to_string();
        write!(f, "{}{}", server.trim_end_matches('/'), self.path)
    }
}

impl TraceArgs {
    /// Returns the settings; `None` if there are to be no traces. An empty value counts as none, as OpenTelemetry has it.
    ///
    /// # Errors
    /// A setting is wrong. Without an endpoint, no other setting is looked at: its variables may be meant for other programs.
    pub(crate) fn settings(&self) -> Result<Option<TraceSettings>, Failure> {
        let given = |text: &Option<String>| {
            let text = text.as_deref().map(str::trim);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let Some(endpoint) = given(&self.otlp_endpoint) else {
            return Ok(None);
        };
        if let Some(protocol) = given(&self.otlp_protocol).filter(|own| own != "http/json") {
            return Err(
                Failure::input(format!("{PROTOCOL} {protocol:?}: spans are sent as http/json alone"))
                    .hint("collectors take it on the port of http/protobuf, usually 4318: leave the setting out, or set it to http/json"),
            );
        }
        let (server, path) = collector(&endpoint)?;
        let headers = given(&self.otlp_headers).unwrap_or_default();
        let headers = pairs(HEADERS, &headers)?.into_iter().map(header);
        let attributes = given(&self.otel_resource_attributes).unwrap_or_default();
        let mut resource = pairs(ATTRIBUTES, &attributes)?;
        let named = given(&self.otel_service_name);
        if named.is_some() {
            resource.retain(|(key, _)| key != SERVICE_NAME);
        }
        if !resource.iter().any(|(key, _)| key == SERVICE_NAME) {
            let name = named.unwrap_or_else(|| "mullion".to_owned());
            resource.push((SERVICE_NAME.to_owned(), name));
        }
        Ok(Some(TraceSettings {
            server,
            path,
            headers: headers.collect::<Result<_, _>>()?,
            sampler: sampler(
                given(&self.otel_traces_sampler),
                given(&self.otel_traces_sampler_arg),
            )?,
            resource,
        }))
    }
}

/// Returns the server of an endpoint, and the path there to which spans are sent.
fn collector(endpoint: &str) -> Result<(Uri, String), Failure> {
    let refused = |why: &str| {
        Failure::input(format!("{ENDPOINT} {endpoint:?}: {why}"))
            .hint("it has to look like http://collector:4318")
    };
    let uri: Uri = endpoint.parse().map_err(|_| refused("it is no URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(refused("it has to begin with http:// or https://"));
    }
    let host = uri.host().unwrap_or_default();
    let authority = uri.authority().map(|own| own.as_str()).unwrap_or_default();
    if host.is_empty() {
        return Err(refused("it names no host"));
    }
    if authority.contains('@') || uri.query().is_some() {
        return Err(refused("it may have neither a user nor a query"));
    }
    let path = format!("{}{PATH}", uri.path().trim_end_matches('/'));
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    let server = Uri::from_parts(parts).map_err(|_| refused("it is no URL"))?;
    Ok((server, path))
}

/// Parses `key=value,key=value`; values are escaped as in URLs.
fn pairs(variable: &str, text: &str) -> Result<Vec<(String, String)>, Failure> {
    let parts = text.split(',').map(str::trim);
    let parts = parts.filter(|part| !part.is_empty());
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let (key, value) = (key.trim(), path_unescape(value.trim()).ok()?);
        (!key.is_empty()).then(|| (key.to_owned(), value))
    };
    // The part itself is not shown, because it may be a secret.
    let refused = |at: usize| {
        Failure::input(format!("{variable}: its part {} is not KEY=VALUE", at + 1))
            .hint("values are escaped as in URLs: %2C is a comma, %20 a space, %25 a percent sign")
    };
    let pairs = parts.enumerate();
    pairs
        .map(|(at, part)| pair(part).ok_or_else(|| refused(at)))
        .collect()
}

fn header((key, value): (String, String)) -> Result<(HeaderName, HeaderValue), Failure> {
    let refused = || {
        Failure::input(format!(
            "{HEADERS}: {key:?} is no name of a header, or its value has characters that headers cannot have"
        ))
    };
    let name: HeaderName = key.parse().map_err(|_| refused())?;
    let mut value: HeaderValue = value.parse().map_err(|_| refused())?;
    // Usually a token.
    value.set_sensitive(true);
    Ok((name, value))
}

/// Parses the sampler. No trace has a parent outside of it, so the samplers with `parentbased_` decide as those without do.
fn sampler(name: Option<String>, part: Option<String>) -> Result<Sampler, Failure> {
    let name = name.unwrap_or_else(|| "always_on".to_owned());
    match name.strip_prefix("parentbased_").unwrap_or(&name) {
        "always_on" => Ok(Sampler::All),
        "always_off" => Ok(Sampler::None),
        "traceidratio" => {
            let text = part.unwrap_or_else(|| "1".to_owned());
            let part: Option<f64> = text.parse().ok();
            part.filter(|part| (0.0..=1.0).contains(part))
                .map(Sampler::Part)
                .ok_or_else(|| {
                    Failure::input(format!("{SAMPLER_ARG} {text:?}: it has to be from 0 to 1"))
                })
        }
        _ => Err(Failure::input(format!(
            "{SAMPLER} {name:?} is none of always_on, always_off, traceidratio, and these with parentbased_ in front"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        own: TraceArgs,
    }

    fn settings(args: &[&str]) -> Result<Option<TraceSettings>, String> {
        let all = ["up"].iter().chain(args);
        let flags = Flags::try_parse_from(all).map_err(|error| error.to_string())?;
        flags.own.settings().map_err(|failure| failure.to_string())
    }

    fn on(args: &[&str]) -> TraceSettings {
        let all = ["--otlp-endpoint=http://collector:4318/prefix/"];
        let all: Vec<_> = all.iter().chain(args).copied().collect();
        settings(&all)
            .expect("they are right")
            .expect("there is an endpoint")
    }

    #[test]
    fn without_an_endpoint_there_are_no_traces() {
        assert_eq!(settings(&[]), Ok(None));
        assert_eq!(settings(&["--otlp-endpoint="]), Ok(None));
        assert_eq!(settings(&["--otlp-protocol=grpc"]), Ok(None));
    }

    #[test]
    fn settings_are_read_as_opentelemetry_means_them() {
        let usual = on(&[]);
        assert_eq!(usual.server, "http://collector:4318/");
        assert_eq!(usual.path, "/prefix/v1/traces");
        assert_eq!(usual.sampler, Sampler::All);
        let name = |name: &str| ("service.name".to_owned(), name.to_owned());
        assert_eq!(usual.resource, [name("mullion")]);

        let own = on(&[
            "--otlp-headers=authorization=Bearer%20a%2Cb, x-team = a=b ,",
            "--otlp-protocol=http/json",
            "--otel-service-name=prod",
            "--otel-resource-attributes=service.name=other,k8s.cluster.name=demo",
            "--otel-traces-sampler=parentbased_traceidratio",
            "--otel-traces-sampler-arg=0.25",
        ]);
        let headers = own.headers.iter();
        let headers: Vec<_> = headers
            .map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")))
            .collect();
        let expected = [("authorization", "Bearer a,b"), ("x-team", "a=b")];
        assert_eq!(headers, expected);
        assert_eq!(own.sampler, Sampler::Part(0.25));
        let cluster = ("k8s.cluster.name".to_owned(), "demo".to_owned());
        assert_eq!(own.resource, [cluster, name("prod")]);
        let attributes = on(&["--otel-resource-attributes=service.name=other"]);
        assert_eq!(attributes.resource, [name("other")]);
        assert_eq!(
            on(&["--otel-traces-sampler=always_off"]).sampler,
            Sampler::None
        );
    }

    #[test]
    fn a_wrong_setting_is_refused_by_its_name_and_a_header_never_shown() {
        let good = "--otlp-endpoint=http://collector:4318";
        for (args, why) in [
            (&["--otlp-endpoint=collector:4318"][..], "begin with http"),
            (&["--otlp-endpoint=grpc://c:4317"], "begin with http"),
            (&["--otlp-endpoint=http://"], "is no URL"),
            (&["--otlp-endpoint=http://a:b@c"], "neither a user nor"),
            (&["--otlp-endpoint=http://c/?a=b"], "nor a query"),
            (
                &[good, "--otlp-protocol=grpc"],
                "\"grpc\": spans are sent as http/json",
            ),
            (
                &[good, "--otlp-headers=a=b,secret"],
                "its part 2 is not KEY=VALUE",
            ),
            (
                &[good, "--otlp-headers=a=secret%2"],
                "its part 1 is not KEY=VALUE",
            ),
            (
                &[good, "--otlp-headers=a=secret%+1"],
                "its part 1 is not KEY=VALUE",
            ),
            (
                &[good, "--otlp-headers=a b=secret"],
                "\"a b\" is no name of a header",
            ),
            (
                &[good, "--otlp-headers=a=secret%0A"],
                "characters that headers cannot have",
            ),
            (
                &[good, "--otel-resource-attributes==secret"],
                "OTEL_RESOURCE_ATTRIBUTES: its part 1",
            ),
            (
                &[good, "--otel-traces-sampler=jaeger_remote"],
                "\"jaeger_remote\" is none of always_on",
            ),
            (
                &[
                    good,
                    "--otel-traces-sampler=traceidratio",
                    "--otel-traces-sampler-arg=2",
                ],
                "OTEL_TRACES_SAMPLER_ARG \"2\": it has to be from 0 to 1",
            ),
        ] {
            let refused = settings(args).expect_err("it is refused");
            assert!(refused.contains(why), "{args:?}: {refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}
