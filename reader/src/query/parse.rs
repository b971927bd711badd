//! The parser: from tokens to a tree. `or` binds least, then `and`, then `not`.
//!
//! Invariant: the depth of an accepted expression is bounded, so that evaluating it cannot overflow the stack.

use memtrack_format::Allocator;
use regex::RegexBuilder;

use super::QueryError;
use super::expr::{Amount, Comparison, Expr, Flag, Number, Test, TextField};
use super::lexer::{Token, TokenAt, words};
use super::units::{self, UnitError};

/// Parentheses and `not`s inside each other.
const DEEPEST: usize = 64;
/// Bytes that a compiled regular expression may take.
const LARGEST_REGEX: usize = 1 << 20;

/// The fields, in the order in which they are listed.
const FIELDS: [(&str, Field); 16] = [
    ("function", Field::Text(TextField::Function)),
    ("file", Field::Text(TextField::File)),
    ("module", Field::Text(TextField::Module)),
    ("thread", Field::Text(TextField::Thread)),
    ("freed_by", Field::Text(TextField::FreedBy)),
    ("allocator", Field::Allocator),
    ("bytes", Field::Number(Number::Bytes)),
    ("size", Field::Number(Number::Bytes)),
    ("lifetime", Field::Number(Number::Lifetime)),
    ("time", Field::Number(Number::Time)),
    ("live", Field::Flag(Flag::Live)),
    ("freed", Field::Flag(Flag::Freed)),
    ("leaked", Field::Flag(Flag::Leaked)),
    ("temporary", Field::Flag(Flag::Temporary)),
    ("peak", Field::Flag(Flag::Peak)),
    ("cross_thread", Field::Flag(Flag::CrossThread)),
];

/// What a field is.
#[derive(Clone, Copy)]
enum Field {
    Text(TextField),
    Allocator,
    Number(Number),
    Flag(Flag),
}

/// The names of all fields.
pub fn field_names() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|(name, _)| *name)
}

/// The names of all fields in a sentence.
fn field_list() -> String {
    let names: Vec<_> = field_names().collect();
    names.split_last().map_or_else(String::new, |(last, names)| format!("{} or {last}", names.join(", ")))
}

/// Parses an expression.
pub(super) fn parse(text: &str) -> Result<Expr, QueryError> {
    let mut parser = Parser { words: words(text)?, at: 0, depth: 0 };
    let expr = parser.or()?;
    match parser.next() {
        (Token::End, _) => Ok(expr),
        (other, column) => Err(unexpected(&other, column, "and, or, or the end")),
    }
}

struct Parser {
    words: Vec<TokenAt>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn next(&mut self) -> TokenAt {
        let next = self.words.get(self.at).cloned().unwrap_or((Token::End, 1));
        self.at += 1;
        next
    }

    /// Consumes the next token if it is this one.
    fn takes(&mut self, wanted: &Token) -> bool {
        let is = self.words.get(self.at).is_some_and(|(token, _)| token == wanted);
        self.at += usize::from(is);
        is
    }

    fn or(&mut self) -> Result<Expr, QueryError> {
        let mut all = vec![self.and()?];
        while self.takes(&Token::Word("or".into())) {
            all.push(self.and()?);
        }
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Expr::Or(all) })
    }

    fn and(&mut self) -> Result<Expr, QueryError> {
        let mut all = vec![self.not()?];
        while self.takes(&Token::Word("and".into())) {
            all.push(self.not()?);
        }
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Expr::And(all) })
    }

    fn not(&mut self) -> Result<Expr, QueryError> {
        let (token, column) = self.next();
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(QueryError::at(column, format!("more than {DEEPEST} nested parentheses")));
        }
        let expr = match token {
            Token::Word(word) if word == "not" => Expr::Not(Box::new(self.not()?)),
            Token::Sign("(") => {
                let inner = self.or()?;
                match self.next() {
                    (Token::Sign(")"), _) => inner,
                    (other, column) => return Err(unexpected(&other, column, "and, or, or )")),
                }
            }
            Token::Word(word) => self.test(&word, column)?,
            other => return Err(unexpected(&other, column, &field_list())),
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn test(&mut self, field: &str, column: usize) -> Result<Expr, QueryError> {
        let Some((_, known)) = FIELDS.iter().find(|(name, _)| *name == field) else {
            return Err(QueryError::at(column, format!("unknown field {field}; expected one of {}", field_list())));
        };
        match *known {
            Field::Text(text) => self.text(text),
            Field::Allocator => self.allocator(),
            Field::Number(number @ Number::Bytes) => self.number(number, |text| units::size(text).map(Amount::Plain)),
            Field::Number(number @ Number::Lifetime) => {
                self.number(number, |text| units::span(text).map(Amount::Plain))
            }
            Field::Number(number @ Number::Time) => self.number(number, |text| units::time(text).map(Amount::Moment)),
            Field::Flag(flag) => Ok(Expr::Flag(flag)),
        }
    }

    fn text(&mut self, text: TextField) -> Result<Expr, QueryError> {
        let (sign, column) = self.next();
        let Token::Sign(sign @ ("~" | "!~" | "=" | "!=")) = sign else {
            return Err(unexpected(&sign, column, "~, !~, = or !="));
        };
        let (value, column) = self.value()?;
        let test = if sign.ends_with('~') { Test::Matches(regex(&value, column)?) } else { Test::Is(value) };
        Ok(negated(Expr::Text(text, test), sign))
    }

    fn value(&mut self) -> Result<(String, usize), QueryError> {
        match self.next() {
            (Token::Word(text) | Token::Quoted(text) | Token::Number(text), column) => Ok((text, column)),
            (other, column) => Err(unexpected(&other, column, "a text, such as \"json.*\"")),
        }
    }

    fn allocator(&mut self) -> Result<Expr, QueryError> {
        let (sign, column) = self.next();
        let Token::Sign(sign @ ("~" | "!~" | "=" | "!=")) = sign else {
            return Err(unexpected(&sign, column, "=, !=, ~ or !~"));
        };
        let (value, column) = self.value()?;
        let test = if sign.ends_with('~') { Test::Matches(regex(&value, column)?) } else { Test::Is(value) };
        let meant: Vec<_> = Allocator::ALL.into_iter().filter(|allocator| test.takes(allocator.name())).collect();
        if meant.is_empty() {
            let names = Allocator::ALL.map(Allocator::name).join(", ");
            return Err(QueryError::at(column, format!("no allocator matches; expected one of {names}")));
        }
        Ok(negated(Expr::Or(meant.into_iter().map(Expr::Allocator).collect()), sign))
    }

    fn number(
        &mut self,
        number: Number,
        amount: impl Fn(&str) -> Result<Amount, UnitError>,
    ) -> Result<Expr, QueryError> {
        let (sign, column) = self.next();
        let comparison = match sign {
            Token::Sign("<") => Comparison::Less,
            Token::Sign("<=") => Comparison::AtMost,
            Token::Sign("=") => Comparison::Equal,
            Token::Sign("!=") => Comparison::Unequal,
            Token::Sign(">=") => Comparison::AtLeast,
            Token::Sign(">") => Comparison::More,
            other => return Err(unexpected(&other, column, "<, <=, =, !=, >= or >")),
        };
        match self.next() {
            (Token::Number(text), column) => {
                let amount = amount(&text).map_err(|error| QueryError::at(column, error.to_string()))?;
                Ok(Expr::Number(number, comparison, amount))
            }
            (other, column) => Err(unexpected(&other, column, "a number, such as 1MB or 2s")),
        }
    }
}

fn negated(expr: Expr, sign: &str) -> Expr {
    if sign.starts_with('!') { Expr::Not(Box::new(expr)) } else { expr }
}

fn regex(text: &str, column: usize) -> Result<regex::Regex, QueryError> {
    RegexBuilder::new(text).size_limit(LARGEST_REGEX).build().map_err(|error| {
        let why = error.to_string();
        let why = why.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned();
        QueryError::at(column, format!("not a regular expression: {why}"))
    })
}

fn unexpected(token: &Token, column: usize, expected: &str) -> QueryError {
    let found = match token {
        Token::Word(text) | Token::Quoted(text) | Token::Number(text) => text.as_str(),
        Token::Sign(sign) => sign,
        Token::End => "the end",
    };
    QueryError::at(column, format!("expected {expected}, found {found}"))
}
