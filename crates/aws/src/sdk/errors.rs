//! Converts errors of the SDK to those of the traits.

use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::{display::DisplayErrorContext, metadata::ProvideErrorMetadata};
use mullion_cloud::{AddressError, CloudError, InterfaceId};

use crate::codes;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// AWS's error code; `None` if there was no response, or one without a code.
    pub(super) code: Option<String>,
    /// AWS's message, or the cause of the failed transfer.
    pub(super) message: String,
}

impl Failed {
    pub(super) fn of<E, R>(error: SdkError<E, R>) -> Self
    where
        E: std::error::Error + ProvideErrorMetadata + 'static,
        R: std::fmt::Debug,
    {
        let code = error.code().map(str::to_owned);
        let message = match (&code, error.message()) {
            (Some(_), Some(message)) => message.to_owned(),
            // Without a response the cause is several errors deep, in the connection.
            _ => DisplayErrorContext(&error).to_string(),
        };
        Self { code, message }
    }

    /// Returns whether AWS's code is this one.
    pub(super) fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code.as_deref().is_some_and(codes::is_not_found)
    }

    /// Returns the error of a call about addresses of an interface.
    pub(super) fn of_interface(self, interface: &InterfaceId) -> AddressError {
        match self.code.as_deref() {
            Some("InvalidNetworkInterfaceID.NotFound") => {
                AddressError::NoInterface(interface.clone())
            }
            _ => self.into(),
        }
    }
}

impl From<Failed> for CloudError {
    fn from(failed: Failed) -> Self {
        match failed.code {
            Some(code) => codes::error(&code, &failed.message),
            None => CloudError::NoAnswer(failed.message),
        }
    }
}

impl From<Failed> for AddressError {
    fn from(Failed { code, message }: Failed) -> Self {
        let Some(code) = code else {
            tracing::debug!("no answer about addresses: {message}");
            return AddressError::NoAnswer;
        };
        match code.as_str() {
            "InsufficientFreeAddressesInSubnet" => AddressError::NoAddress,
            "InsufficientCidrBlocks" => AddressError::NoPrefix,
            "PrivateIpAddressLimitExceeded" => AddressError::NoSlot,
            "InvalidParameterValue" if message.contains("aren't sufficient free Ipv4") => {
                AddressError::NoRoom
            }
            code if codes::is_throttled(code) => AddressError::Throttled,
            "InvalidParameterValue" => AddressError::Invalid(message),
            code => AddressError::Invalid(format!("{code}: {message}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_addresses_are_known_by_their_codes() {
        let interface = InterfaceId("eni-1".into());
        let error = |code: &str, message: &str| {
            let failed = Failed {
                code: Some(code.to_owned()),
                message: message.to_owned(),
            };
            failed.of_interface(&interface)
        };
        for known in [
            AddressError::NoAddress,
            AddressError::NoPrefix,
            AddressError::NoRoom,
            AddressError::NoSlot,
            AddressError::Throttled,
            AddressError::NoInterface(interface.clone()),
            AddressError::Invalid("The interface has no prefixes".to_owned()),
        ] {
            let text = known.to_string();
            let (code, message) = text.split_once(": ").expect("code and sentence");
            assert_eq!(error(code, message), known);
        }
        let none = Failed {
            code: None,
            message: "connection refused".to_owned(),
        };
        assert_eq!(AddressError::from(none), AddressError::NoAnswer);
    }
}
