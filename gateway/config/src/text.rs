//! Types whose form in a document is a text.

use std::fmt;

/// Implements the schema of a type whose form in a document is a text or a number.
macro_rules! schema_of {
    ($type:ident: $schema:tt) => {
        #[cfg(feature = "schemars")]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}
pub(crate) use schema_of;

/// Writes a type as its alternate `Display` text, and reads it with `FromStr`. In the schema, a field may add
/// bounds and a pattern.
macro_rules! by_text {
    ($type:ident) => {
        crate::text::by_text!($type: {"type": "string"});
    };
    ($type:ident: $schema:tt) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&format_args!("{self:#}"))
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        crate::text::schema_of!($type: $schema);
    };
}
pub(crate) use by_text;

/// Whether a value is its default, which documents leave out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether a number is its default `N`, which documents leave out.
pub(crate) fn is_number<T: Copy + Into<u32>, const N: u32>(number: &T) -> bool {
    (*number).into() == N
}

/// Declares an enum whose variants have these names in documents, and a function `as_str` with the name.
#[macro_export]
macro_rules! named {
    ($(#[$of_type:meta])* $visibility:vis enum $type:ident {
        $($(#[$of_variant:meta])* $variant:ident = $name:literal,)+
    }) => {
        $(#[$of_type])*
        #[derive(serde::Serialize, serde::Deserialize)]
        $visibility enum $type {
            $($(#[$of_variant])* #[serde(rename = $name)] $variant,)+
        }

        impl $type {
            /// The name in documents.
            #[must_use]
            $visibility const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
pub(crate) use named;

/// The suffixes of a quantity with their factors, the largest first.
pub(crate) type Suffixes = [(&'static str, u64)];

/// Prints `number` as an integer with the largest suffix of which the number is a multiple.
pub(crate) fn print(number: u64, suffixes: &Suffixes, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let is_its = |(_, factor): &&(&str, u64)| number != 0 && number.is_multiple_of(*factor);
    match suffixes.iter().find(is_its) {
        Some((suffix, factor)) => write!(f, "{}{suffix}", number / factor),
        None => write!(f, "{number}"),
    }
}

/// Parses digits with an optional suffix.
pub(crate) fn parse(text: &str, suffixes: &Suffixes) -> Option<u64> {
    let with = |(suffix, factor): &(&str, u64)| Some((text.strip_suffix(suffix)?, *factor));
    let (digits, factor) = suffixes.iter().find_map(with).unwrap_or((text, 1));
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    number.checked_mul(factor)
}

/// Implements a quantity: a tuple struct of an integer, with the text form of `$suffixes`. `$expected` is the expected
/// form in an error. A document may also have a number.
macro_rules! quantity {
    ($type:ident, $suffixes:expr, $expected:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                crate::text::print(self.0, &$suffixes, f)
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let number = crate::text::parse(text, &$suffixes);
                number
                    .map(Self)
                    .ok_or_else(|| format!("{text:?} is not {}", $expected))
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<$type, E> {
                        Ok($type(value))
                    }
                    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<$type, E> {
                        let unexpected = serde::de::Unexpected::Signed(value);
                        let number = u64::try_from(value).map($type);
                        number.map_err(|_| E::invalid_value(unexpected, &self))
                    }
                    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<$type, E> {
                        value.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    };
}
pub(crate) use quantity;
