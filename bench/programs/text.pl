# Words counted, indexed and sorted in Perl: text.pl ROUNDS
use strict;
use warnings;

my ($rounds) = @ARGV;
srand(1);
my (%index, @kept);
for my $round (1 .. $rounds) {
    my @words = map { join "", map { chr(97 + int rand 26) } 1 .. 3 + int rand 12 } 1 .. 300;
    for my $word (@words) {
        push @{ $index{ substr $word, 0, 2 }{$word} }, { round => $round, text => uc $word };
    }
    my @sorted = sort { length $a <=> length $b || $a cmp $b } @words;
    push @kept, join " ", map { ucfirst } grep { /[aeiou]{2}/ } @sorted;
    shift @kept while @kept > 50;
    delete $index{ (keys %index)[0] } for 1 .. 5;
}
print scalar(keys %index), "\n";
