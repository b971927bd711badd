//! Splits an expression into tokens with their columns.
//!
//! Invariant: columns count characters from 1, as an editor does.

use super::QueryError;

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A name, a keyword, or a text without quotation marks.
    Word(String),
    /// A text in quotation marks.
    Quoted(String),
    /// A number with its unit.
    Number(String),
    /// `( ) ~ !~ = != < <= > >=`; `==` is `=`.
    Sign(&'static str),
    /// The end of the expression.
    End,
}

/// A token and its column.
pub(super) type TokenAt = (Token, usize);

const SIGNS: [(&str, &str); 11] = [
    ("!~", "!~"),
    ("!=", "!="),
    ("==", "="),
    ("<=", "<="),
    (">=", ">="),
    ("(", "("),
    (")", ")"),
    ("~", "~"),
    ("=", "="),
    ("<", "<"),
    (">", ">"),
];

/// The tokens of an expression; the last one is [`Token::End`].
pub(super) fn words(text: &str) -> Result<Vec<TokenAt>, QueryError> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let column = column(text, rest);
        let (token, after) = word(rest, column)?;
        words.push((token, column));
        rest = after.trim_start();
    }
    words.push((Token::End, text.trim_end().chars().count() + 1));
    Ok(words)
}

fn column(text: &str, rest: &str) -> usize {
    text[..text.len() - rest.len()].chars().count() + 1
}

fn word(text: &str, column: usize) -> Result<(Token, &str), QueryError> {
    let first = text.chars().next().unwrap_or(' ');
    if let Some((sign, meant)) = SIGNS.iter().find(|(sign, _)| text.starts_with(sign)) {
        return Ok((Token::Sign(meant), &text[sign.len()..]));
    }
    if first == '\'' || first == '"' {
        let inner = &text[1..];
        let end = inner.find(first).ok_or_else(|| QueryError::at(column, format!("unterminated {first}")))?;
        return Ok((Token::Quoted(inner[..end].into()), &inner[end + 1..]));
    }
    if first.is_ascii_digit() {
        let (number, after) = split(text, |char| char.is_ascii_digit() || char == '.');
        // A unit may stand apart, a keyword is none.
        let spaced = after.trim_start_matches(' ');
        let (unit, behind) = split(spaced, |char| char.is_alphabetic() || char == '%');
        let keyword = matches!(unit, "and" | "or" | "not");
        return Ok(if unit.is_empty() || keyword {
            (Token::Number(number.into()), after)
        } else {
            (Token::Number(format!("{number}{unit}")), behind)
        });
    }
    if first.is_alphabetic() || first == '_' || first == '/' {
        let (word, after) = split(text, |char| char.is_alphanumeric() || "_-./:".contains(char));
        return Ok((Token::Word(word.into()), after));
    }
    Err(QueryError::at(column, format!("unexpected {first}; put text with special characters in \"quotation marks\"")))
}

fn split(text: &str, inside: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|char| !inside(char)).unwrap_or(text.len()))
}
