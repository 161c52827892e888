"""The words that the notebooks are put together from. No logic.

All pools are tuples, because their order is part of what a seed gives. `DEEDS` and `TOPICS` keep one rule more: no
two of their entries share a content word. A split is asked about entries of its own, so that a table of the words
seen in `train` answers nothing in `heldout`.
"""

from __future__ import annotations

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)

PEOPLE = ("sister", "brother", "cousin", "uncle", "aunt", "boss", "coach", "tutor", "barber", "tailor", "landlord")

CITIES = ("Lyon", "Bergen", "Turin", "Ghent", "Porto", "Leeds", "Vienna", "Prague", "Oslo", "Malta", "Cairo", "Lima")

THINGS = (
    *("tent", "drill", "ladder", "camera", "kettle", "stove", "globe", "scarf", "lamp", "bike", "radio", "piano"),
    *("clock", "mirror", "sofa", "boat", "fence", "shed", "statue", "carpet"),
)

DEEDS = (
    *(("mended", "repair"), ("bought", "purchase"), ("wrecked", "destroy"), ("hid", "conceal"), ("misplaced", "lose")),
    *(("swiped", "steal"), ("built", "construct"), ("threw away", "get rid of"), ("spotted", "see")),
    *(("washed", "clean"), ("selected", "choose"), ("damaged", "break"), ("gave back", "return"), ("sketched", "draw")),
    *(("hauled", "carry"), ("wrapped", "pack"), ("unearthed", "dig up"), ("rented", "hire"), ("auctioned", "sell")),
    *(("burnt", "set fire to"), ("glued", "stick together"), ("donated", "give away"), ("shoved", "push")),
    *(("examined", "inspect"),),
)
"""What somebody did, in the words of a note and in other words of a question."""

IDLE_DEEDS = ("kept", "liked", "moved", "wanted")
"""Deeds that no question is about."""

DEED_TAILS = ("", "", "", " at dawn", " after lunch", " by mistake", " in a hurry")

LOANS = ("lent the {thing} to my {person}", "my {person} borrowed the {thing}", "gave my {person} the {thing} to use")

HOMES = ("my {person} moved to {city}", "my {person} now lives in {city}", "my {person} has a flat in {city}")

GOODS = ("coffee", "tea", "bread", "stamps", "apples", "paint", "seeds", "soap", "nails", "wool", "cheese", "candles")

SPENDING = ("{goods}, {euro} euro", "paid {euro} euro for {goods}", "{euro} euro went on {goods}")

EVENTS = (
    *("dentist", "wedding", "exam", "concert", "haircut", "picnic", "parade", "lecture", "flea market", "film night"),
    *("book club", "football match", "job interview", "garden party"),
)

EVENT_TAILS = ("", " at noon", ", then home", ", a long one")

TRIPS = (("ran", "run"), ("swam", "swim"), ("hiked", "hike"), ("rowed", "row"), ("cycled", "cycle"))

LOADS = ("parcel", "pumpkin", "suitcase", "fish", "rock", "cake")

SPELLS = (("slept", "sleep"), ("read", "read"), ("drove", "drive"), ("waited", "wait"), ("worked", "work"))

RIDES = ("train", "bus", "ferry", "tram", "plane")

QUIET = (
    *("quiet day", "stayed in", "nothing new", "early night", "long walk", "lazy day", "no visitors", "day off"),
    *("tired", "busy", "slow day", "same again"),
)
"""Short entries that no question is about."""


TOPICS = {
    "food": (
        *("made lentil soup", "fresh rolls for breakfast", "burnt the pancakes", "tried a curry", "grilled two trout"),
        *(
            "baked a plum cake",
            "noodles at midnight",
            "pizza with olives",
            "melon and ham for lunch",
            "so much pudding",
        ),
        *("the sauce needs garlic", "fried eggs and toast", "a jar of honey", "ripe figs for dessert", "hungry again"),
    ),
    "music": (
        *("the choir sang a hymn", "tuned the guitar", "a drum solo", "practised scales", "old jazz records"),
        *("violin lesson", "the band was loud", "hummed a tune", "piano duet", "an opera in Italian"),
        *("learnt two chords", "the flute is out of key", "danced to a waltz", "a lullaby", "heard a symphony"),
    ),
    "money": (
        *("the rent went up", "paid off the loan", "got a tax refund", "my salary arrived", "opened a savings account"),
        *(
            "the bank raised its fees",
            "lost cash in a bet",
            "the shares fell",
            "worked out a budget",
            "cannot afford it",
        ),
        *("the insurance bill is huge", "owe fifty dollars", "sent the invoice", "a good discount", "still in debt"),
    ),
    "weather": (
        *("fog until ten", "hail on the roof", "first snow", "thunder and lightning", "hot and dry"),
        *(
            "strong wind from the north",
            "rain without end",
            "clear blue sky",
            "frost on the windows",
            "a storm is near",
        ),
        *("mild, a few clouds", "the sun came out", "icy roads", "drizzle all day", "humid, thirty degrees"),
    ),
}
