"""Words that stand in prompts and programs anyway: a gold answer that is one of them cannot be looked for."""

from __future__ import annotations

import builtins
import keyword
import sys

_ENGLISH = """
a about above absolute accept according account across action actual actually add added addition additional address
after again against agent agree all allow allowed almost alone along already also although always among amount an
analysis and another answer answers any anyone anything apart appear apply are area argument around array article as
ask assistant assume at attempt author average avoid away back bad bank base based basic be because become been before
began begin behind being below best better between beyond big billion black blue body book both bottom boolean bracket
brief bring brown browser build business but by calculate call called cannot capital careful carefully case category
cause cent center central century certain chain change chapter character check child children choice choose city
class clean clear clearly client close code collect color colour column combine come command comment common community
company compare complete computer concise condition conclusion confirm consider consist contain content context
continue control convert copy correct could count country couple course create current customer daily data database
date day days december decide decimal decision deep default define degree describe description detail details
determine develop device dictionary did differ difference different difficult digit direct direction directly
discuss distance divide do document does dollar dollars done double down draft during each early earth easily east
easy edge education effect eight either element else email empty end energy engine english enough ensure enter entire
entry equal equation error especially even event ever every everyone everything evidence exact exactly examine
example examples except exist expect expected explain explanation express expression extra extract fact factor fail
failed failure fall false family famous far fast father feature february few field figure file final finally find
finish first five fix follow following food for force form formal format former found four fraction free friday
friend from front full function further future game garden general generate gave get give given global go gold good
government graph great green group guess had half hand happen hard has have he head health hear height held hello
help her here high him his history hold home hour hours house how however human hundred i idea identify if image
important impossible improve in include included including increase indeed index indicate individual industry
information initial input inputs inside instance instead instruction instructions integer interest internal
international into invalid is issue it item items its itself january join journal judge july june just keep key kind
know knowledge known label language large last late later latest law lead learn least leave left length less let
letter letters level life light like likely limit line lines link list listed little local location long longer look
love low lower machine made main major make man many march mark market match material math matter maximum may maybe
me mean meaning measure media medium meeting member memory mention message method middle might mile million mind
minimum minor minus minute minutes miss missing mode model modern moment monday money month months more morning most
mother move much multiple multiply museum music must my name named names nation national natural nature near nearly
necessary need negative neither network neutral never new news next night nine no nobody none nor normal normally
north not note nothing notice november now null number numbers numeric object observe october of off offer office
often old on once one only open operation opinion option options or orange order organization original other others
our out output outside over overall own page paper paragraph parent part particular parts party pass past path
pattern people per percent percentage perhaps period person phone phrase picture piece place plain plan plane planet
play please plus point points policy political position positive possible power precise prefer prepare present
president press pretty previous price primary private probably problem problems process produce product program
project prompt proper property provide public purple purpose put python quality quantity question questions quickly
quite quote range rank rate rather ratio reach read reader reading ready real really reason reasoning recent record
reduce refer reference region regular related relation relevant remain remember remove repeat repeated replace reply
report represent request require required research resource respond response rest result results return returned
right river road role room root round row rule rules run same sample saturday save say scale school science score
search season second seconds secret section see seem select selected sentence sentences separate september series
serious serve service set seven several shall shape share she short should show shown side sign similar simple simply
since single six size skip small so social society software solution solve some someone something sometimes soon
sorry sort source south space speak special specific speed spell square staff stage standard star start state stated
statement states station status stay step steps still stop store story strategy street string strong structure student
students study style subject success such suggest summary summarize sunday support sure surface symbol system table
take task tasks teacher team technology tell ten term terms test text than thank that the their them then theory there
therefore these they thing things think third this those though thought thousand three through thursday time times
title to today together token tokens tomorrow too tool tools top total toward town trace train travel treat tree true
try tuesday turn twenty twice two type types under understand union unit united university unknown unless until up
update upon upper use used useful user uses using usual usually valid value values variable various verify version
very video view village voice wait walk wall want war was water way we website wednesday week weeks weight well were
west what when where whether which while white who whole whom whose why wide will window winner winter with within
without woman word words work worker working works world worth would write writer written wrong year years yellow yes
yesterday yet you young your zero
"""

COMMON: frozenset[str] = frozenset(
    word.lower() for word in [*_ENGLISH.split(), *keyword.kwlist, *dir(builtins), *sys.stdlib_module_names]
)
