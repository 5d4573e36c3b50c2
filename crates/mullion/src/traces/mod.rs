//! Exports traces of decisions ([`mullion_controllers::traces`]) to a collector, by OTLP over HTTP as JSON.
//!
//! [`settings`] parses OpenTelemetry's settings, [`otlp`] encodes spans, and [`export`] sends them.

pub(crate) mod export;
mod otlp;
pub(crate) mod settings;

pub(crate) use export::Export;
